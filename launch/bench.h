// baton bench kernels: time of the attention operator over the benchmark shapes of kernels/shapes.h, or others.
//
// A measurement walks over as many sets of tensors as make 65,536 tokens, forward over all of them, then backward over
// all: like a layer of a model under training, each call finds its tensors in memory, not in a cache, however short the
// sequence is. Cases that differ in T alone are measured in turn, and medians count, since the clock of a machine
// changes and other work disturbs.
//
//   baton bench kernels
//   baton bench kernels --shape vector_4k,vector_64k --dtype float64 --out bench.json
//   baton bench kernels --shape vector_4k --tokens 4096,16384,65536 --gate none,fixed,scalar,vector,bilinear
#pragma once

#include <string>
#include <vector>

#include "comm/group.h"
#include "kernels/linear_attention.h"
#include "launch/options.h"

namespace baton {

struct BenchCase {
  std::string name;  // of the shape that it comes from
  AttentionShape shape;
};

struct BenchOptions {
  std::vector<BenchCase> cases;  // each shape once
  DType dtype = DType::kFloat32;
  int64_t repeat = 5, threads = 0;  // threads 0: those that the job gives a rank
  int64_t tokens = 65536;           // that a measurement walks over
  std::string out;                  // empty: no file is written
};

/// Of the command's flags; throws input errors.
BenchOptions parse_bench_options(const Command& command);

/// What one call took in each of `repeat` measurements.
struct BenchTime {
  std::vector<double> wall_s;
  std::vector<double> processor_s;  // of all threads together, waiting ones too: counts on a machine that others use
  double flops = 0;                 // of the recurrence: 4 K V a token and head, with backward 12 K V
};

double median(std::vector<double> values);

struct BenchResult {
  BenchTime forward, both;
};

/// Measures these of the options' cases in turn, `repeat` times.
std::vector<BenchResult> bench_operator(const std::vector<BenchCase>& cases, const BenchOptions& options);

/// Collective: every rank runs every case at the same time, rank 0 reports its own.
ExitCode run_bench(const BenchOptions& options, Group& world);

}  // namespace baton
