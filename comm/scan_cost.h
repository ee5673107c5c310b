// What handing states on costs: seconds that a step takes beyond the same work without hand-over, by strategy. Pure
// arithmetic; README.md has the reasons.
#pragma once

#include <vector>

#include "comm/state_scan.h"

namespace baton {

/// n bytes take latency_s + n / bandwidth seconds: of a message, or of memory that a composition reads and writes.
struct Link {
  double latency_s = 0, bandwidth = 0;
  double seconds(int64_t bytes, double times = 1) const {
    return latency_s + times * static_cast<double>(bytes) / bandwidth;
  }
};

/// What ranks and their links do in a second.
struct ScanMachine {
  Link inside, between;        // neighbours in a node; in two nodes
  int64_t ranks_per_node = 1;  // one after another
  Link compose;
  /// A rank waits until what it sends is taken (MPI on the host); otherwise sends run beside its work (NCCL).
  bool sends_wait = false;
  /// As so many times its bytes counts a message that was sent before it is waited for (where sends wait, none is), and
  /// one that meets another of its size.
  double early = 1, both_ways = 1;
  const Link& slowest(int64_t num_ranks) const { return num_ranks > ranks_per_node ? between : inside; }
};

/// A layer's scan on one rank.
struct ScanLayer {
  int64_t state_bytes = 0, carry_bytes = 0;
  int64_t spans = 1;  // whose states `advance` reads and writes, and `own` reads
  int64_t rows = 1;   // of the carry, as ShardCarry has them
  /// Of so many bytes of all rows, those of the largest slice where R ranks take whole rows.
  int64_t slice(int64_t bytes, int64_t R) const { return bytes / rows * ((rows + R - 1) / R); }
};

/// Ranks of each node, as hierarchical has them: 1 where nodes are not equal.
int64_t node_size(int64_t num_ranks, int64_t ranks_per_node);

/// The most bytes that one rank sends in a scan; by nodes, of a rank with the largest slice.
int64_t most_sent(ScanStrategy strategy, int64_t num_ranks, const ScanLayer& layer, int64_t ranks_per_node);

/// Of a pass of all layers in one direction, from the first rank's begin to the last rank's end.
double exposed_in_pass(ScanStrategy strategy, int64_t num_ranks, const std::vector<ScanLayer>& layers,
                       const ScanMachine& machine);

/// Of `passes` forward and as many backward, with all states sent `wraps` times from the last rank to the first.
double exposed_in_step(ScanStrategy strategy, int64_t num_ranks, const std::vector<ScanLayer>& layers,
                       const ScanMachine& machine, int64_t passes, int64_t wraps);

/// The strategy that exposes least; of equals the first in ScanStrategy's order.
ScanStrategy cheapest_strategy(int64_t num_ranks, const std::vector<ScanLayer>& layers, const ScanMachine& machine);

}  // namespace baton
