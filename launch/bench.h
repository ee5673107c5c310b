// baton bench: what kernels and messages take.
//
// baton bench kernels: time of the attention operator by heads, gate kind and length, forward and with backward.
//
// On a CPU a measurement walks over as many sets of tensors as make 65,536 tokens, forward over all of them, then
// backward over all: like a layer of a model under training, each call finds its tensors in memory, not in a cache,
// however short the sequence is. On a GPU it is one call between events of the stream, eager, and with --graph replays
// of a CUDA graph beside it. Cases that differ in B and T alone are measured in turn, and medians count, since the
// clock of a machine changes and other work disturbs.
//
//   baton bench kernels
//   baton bench kernels --device cpu --threads 1 --shape H4_K32_V64 --gate vector,fixed --tokens 4096,65536 --repeat 9
//   baton bench kernels --gate all --tokens 2048 --stages --json kernels.jsonl
//   baton bench kernels --shape H16_K128_V128 --gate fixed --batch 1 --tokens 256,512,1024 --graph
//
// baton bench comm, on two ranks or more: what handing a layer's state on takes, and what it adds to the operator of
// every rank where they share a sequence of ranks x tokens. See bench_comm.cpp.
//
//   mpirun -np 2 baton bench comm --shape H4_K256_V512 --gate vector --tokens 16384 --graph
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/group.h"
#include "launch/bench_problem.h"
#include "launch/options.h"
#include "model/trainer.h"

namespace baton {

struct BenchOptions {
  std::vector<AttentionShape> cases;  // each once, with the span that runs
  Device device;
  DType dtype = DType::kFloat32;
  int64_t repeat = 5, threads = 0;  // threads 0: those that the job gives a rank
  int64_t tokens = 0;               // that a measurement walks over at least; 0: one call
  bool comm = false, graph = false, stages = false;
  double bandwidth = 0, peak = 0;  // bytes/s and FLOP/s of the floor
  std::string json;                // empty: no file is written
};

/// Of the command's flags, for a device; throws input errors.
BenchOptions parse_bench_options(const Command& command, Device device);

/// "H4_K256_V512", as in --shape.
std::string shape_name(const AttentionShape& s);

/// What one call took in each of `repeat` measurements.
struct BenchTime {
  std::vector<double> wall_s;
  std::vector<double> processor_s;  // CPU: of all threads together, waiting ones too; counts beside other work
  std::vector<double> graph_s;      // with --graph: a replay
  BenchWork work;
  double floor_s = 0;  // the longer of what the work's bytes and operations take at bandwidth and peak
};

double median(std::vector<double> values);

struct BenchResult {
  BenchTime forward, both;  // both: forward, then backward
  int64_t scratch_bytes = 0;
  struct Stage {
    const char* name;
    BenchTime time;
  };
  std::vector<Stage> stages;  // with --stages
};

/// Measures these of the options' cases in turn, `repeat` times.
std::vector<BenchResult> measure_operator(const std::vector<AttentionShape>& cases, const BenchOptions& options,
                                          const Stream& stream);

/// Collective: every rank runs every case at the same time, rank 0 reports its own.
ExitCode run_bench(const BenchOptions& options, Group& world);

/// Collective over the ranks of a job, which share a sequence; rank 0 reports the slowest.
ExitCode run_comm_bench(const BenchOptions& options, const Ranks& ranks);

/// Of it: sums of gradients, alone and beside a GPU's work. Reports them, and returns a line of JSON.
std::string bench_sums(const BenchOptions& options, const Ranks& ranks);

/// What the line of a case begins with.
nlohmann::json describe_case(const AttentionShape& s);
/// The first line of the JSON file.
std::string describe_bench(const BenchOptions& options, const Group& world);
/// Collective: rank 0 writes what --json asks for.
void write_bench(const BenchOptions& options, Group& world, const std::string& lines);

}  // namespace baton
