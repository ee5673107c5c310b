// The golden operator file: its cases as problems and results.
#pragma once

#include "runtime/hdf5_file.h"
#include "tests/reference/attention_reference.h"

namespace baton::test {

/// Names of all cases, "/decay/all_-1", ..
std::vector<std::string> golden_cases(const Hdf5File& file);
AttentionProblem read_golden_problem(const Hdf5File& file, const std::string& name);
AttentionResult read_golden_result(const Hdf5File& file, const std::string& name);

}  // namespace baton::test
