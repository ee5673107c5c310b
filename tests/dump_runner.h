// Dumps of a small model, as the tests compare them.
#pragma once

#include <map>

#include "tests/model_runner.h"

namespace baton::test {

constexpr int64_t kGrid = 24;  // of the dumps

struct Dumped {
  Shape shape;
  std::vector<double> values;
};
using Dump = std::map<std::string, Dumped>;  // by path, such as "layer.0/state"

/// Runs a model with a dump of its layers, and reads it.
Dump dump_of(ModelRun run, const std::string& what = "state,dstate,gate", const std::string& layers = "all");

Dump without_sp(Dump dump);

/// The same datasets; equal where bound is 0, else within it relative to a.
void expect_same(const Dump& a, const Dump& b, double bound);

}  // namespace baton::test
