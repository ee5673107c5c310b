// What a step takes on more ranks than there are: from a step measured on one rank, and what links and compositions
// take. Every rank keeps the work that the one had; hand-over and the sum of gradients come on top.
#pragma once

#include "launch/scan_choice.h"

namespace baton {

struct ScalingPlan {
  double step_s = 0;  // of one rank alone with a shard's tokens
  StepScans scans;
  ScanMachine machine;
  int64_t parallel_sp = 0;            // 0: all ranks
  std::vector<int64_t> bucket_bytes;  // of the gradient, in the order in which their sums begin
  double sum_bandwidth = 0;           // bytes/s in a node, of 2 (P - 1) / P of a bucket
  double sum_exposed = 0;             // part of a sum that backward beside it loses
  double last_backward_s = 0;         // under which sums run, where no send waits

  /// For plan.step_s; config must be valid and its vocabulary known.
  static ScalingPlan of(const Config& config, const Topology& topology, const ParameterTable& table);

  int64_t sp_size(int64_t num_ranks) const { return parallel_sp == 0 ? num_ranks : parallel_sp; }
  double hand_over_s(int64_t num_ranks, ScanStrategy strategy) const {
    return scans.exposed(strategy, sp_size(num_ranks), machine);
  }
  /// What the sums of the gradient take beyond the backward that hides them, and from it.
  double gradients_s(int64_t num_ranks) const;
};

/// A line for each of plan.ranks and each strategy, as text.
std::string scaling_table(const ScalingPlan& plan, const Config& config);

}  // namespace baton
