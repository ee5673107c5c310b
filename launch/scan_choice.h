// Which strategy of the scan a run takes where parallel.scan = auto: what a step hands on, what links and compositions
// take, and the choice between them.
#pragma once

#include "comm/scan_cost.h"
#include "model/trainer.h"

namespace baton {

/// What one step of a configuration hands on.
struct StepScans {
  int64_t micro_batch = 1, micro_batches = 1;  // sequences that a dp rank holds at once; how often in a step
  int64_t shard_tokens = 0;                    // of the largest shard of a window
  int64_t windows = 1, wraps = 0;              // wraps: of all micro-batches, forward and backward
  std::vector<ScanLayer> layers;

  static StepScans of(const Config& config, const Topology& topology);
  double exposed(ScanStrategy strategy, int64_t num_ranks, const ScanMachine& machine) const {
    return exposed_in_step(strategy, num_ranks, layers, machine, windows * micro_batches, wraps);
  }
};

/// Messages between the neighbours of every second pair, from [first, first + 1] on: one to the upper rank and one back
/// as soon as that is there; one to the upper rank; or two that meet.
enum class Messages { kThereAndBack, kOneWay, kBothWays };
void send_between(Group& group, int first, Messages messages, const Tensor& out, const Tensor& in,
                  const Stream& stream);

/// Collective over the world, the same on all ranks: the slowest of all neighbours in sp groups, with messages of one
/// number and of the carry of `shape`, and the slowest composition of one number and of as many carries as its spans.
/// Medians; on a GPU without launches.
ScanMachine measure_scan(const Ranks& ranks, const AttentionShape& shape, DType number);

/// The keys of [plan] that say the same, as words of a command line.
std::string plan_keys(const ScanMachine& machine);

/// As the configuration's [plan] tells; an input error where it does not. Sends wait where no GPU is planned.
ScanMachine planned_machine(const Config& config);

/// Collective: the strategy that costs least, by a measurement, or in a plan by what that tells; the same on all ranks.
/// Rank 0 says it in a line.
ScanStrategy choose_scan(const Config& config, const Ranks& ranks, bool planning);

/// An input error that says what measures it, where value is 0.
void require_measured(const char* key, double value, const char* by);

}  // namespace baton
