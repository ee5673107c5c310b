// baton bench kernels: time of the attention operator over the benchmark shapes of kernels/shapes.h, or others.
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
  std::string out;                  // empty: no file is written
};

/// Of the command's flags; throws input errors.
BenchOptions parse_bench_options(const Command& command);

/// What one call took: the least of `repeat` measurements, since other work on the machine disturbs.
struct BenchTime {
  double wall_s = 0;
  double processor_s = 0;  // of all threads together, waiting ones too: counts on a machine that others use
  double flops = 0;        // of the recurrence: 4 K V a token and head, with backward 12 K V
};

struct BenchResult {
  BenchTime forward, both;
};

BenchResult bench_operator(const AttentionShape& shape, DType dtype, int64_t repeat);

/// Collective: every rank runs every case at the same time, rank 0 reports its own.
ExitCode run_bench(const BenchOptions& options, Group& world);

}  // namespace baton
