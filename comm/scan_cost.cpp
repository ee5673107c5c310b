#include "comm/scan_cost.h"

#include <algorithm>

namespace baton {
namespace {

double times(int64_t count, double seconds) { return static_cast<double>(count) * seconds; }

/// Doubling's messages and compositions, of the rank that takes longest. It composes what comes in with what it knows,
/// but for the first message, and that with its own carry, for every message that it sends but the first.
double rounds_seconds(int64_t num_ranks, double compose, double both_ways, double one_way) {
  double most = 0;
  for (int64_t behind = 0; behind < num_ranks; ++behind) {
    double seconds = 0;
    for (int64_t distance = 1; distance < num_ranks; distance *= 2) {
      const bool receives = distance <= behind, sends = distance < num_ranks - behind;
      if (receives) seconds += sends ? both_ways : one_way;
      if (distance > 1) seconds += times(receives + (sends && distance / 2 <= behind), compose);
    }
    most = std::max(most, seconds);
  }
  return most;
}

/// Compositions of slices in a node of R > 1 ranks beside those of doubling: prefixes, and of each with what enters.
int64_t compositions_in_node(int64_t num_nodes, int64_t R) {
  if (num_nodes == 1) return R - 2;
  return 2 * R - 3 + (num_nodes > 2 ? 1 : 0);
}

/// Seconds of a layer's compositions: of two carries, and of a shard's spans; and of the copy of a state.
struct Composing {
  double compose, advance, own, copy;
  Composing(const ScanLayer& layer, const Link& memory)
      : compose(memory.seconds(3 * layer.carry_bytes)),
        advance(memory.seconds(2 * layer.spans * layer.state_bytes)),
        own(memory.seconds((layer.spans + 1) * layer.state_bytes)),
        copy(memory.seconds(2 * layer.state_bytes)) {}
};

}  // namespace

int64_t node_size(int64_t num_ranks, int64_t ranks_per_node) {
  if (num_ranks <= ranks_per_node) return num_ranks;
  return num_ranks % ranks_per_node == 0 ? ranks_per_node : 1;
}

int64_t most_sent(ScanStrategy strategy, int64_t num_ranks, const ScanLayer& layer, int64_t ranks_per_node) {
  if (num_ranks == 1) return 0;
  if (strategy == ScanStrategy::kChain) return layer.state_bytes;
  if (strategy == ScanStrategy::kAllGather) return layer.carry_bytes;
  const int64_t R = strategy == ScanStrategy::kHierarchical ? node_size(num_ranks, ranks_per_node) : 1;
  const int64_t rounds = StateScan::doubling_rounds(static_cast<int>(num_ranks / R));
  if (R == 1) return rounds * layer.carry_bytes;
  return layer.carry_bytes + (rounds - 1) * layer.slice(layer.carry_bytes, R) +
         (R - 1) * layer.slice(layer.state_bytes, R);
}

double exposed_in_pass(ScanStrategy strategy, int64_t num_ranks, const std::vector<ScanLayer>& layers,
                       const ScanMachine& machine) {
  if (num_ranks == 1) return 0;
  const int64_t R = node_size(num_ranks, machine.ranks_per_node), num_nodes = num_ranks / R;
  if (strategy == ScanStrategy::kHierarchical && R == 1) strategy = ScanStrategy::kDoubling;
  const int64_t crossings = (num_ranks - 1) / machine.ranks_per_node, hops = num_ranks - 1 - crossings;
  // Messages that a rank of a chain waits for in a layer: where sends wait, one between two others for both.
  const int64_t waits = machine.sends_wait ? std::min<int64_t>(num_ranks - 1, 2) : 1;
  // A node that is all ranks hands nothing back to its first: of two, one to the other.
  const double handed_back = num_ranks == 2 ? 1 : machine.both_ways;
  double once = 0, every_layer = 0;
  for (const ScanLayer& layer : layers) {
    const Composing c(layer, machine.compose);
    const Link& slowest = machine.slowest(num_ranks);
    const double waited = times(waits, slowest.seconds(layer.state_bytes, machine.early));
    const int64_t slice_carry = layer.slice(layer.carry_bytes, R), slice_state = layer.slice(layer.state_bytes, R);
    // The first rank's carry is a copy of what leaves it.
    if (strategy != ScanStrategy::kChain) once = std::max(once, c.advance + c.copy - c.own);
    switch (strategy) {
      case ScanStrategy::kChain:
        every_layer += waited;
        once = std::max(once, times(hops, machine.inside.seconds(layer.state_bytes) + c.advance) +
                                  times(crossings, machine.between.seconds(layer.state_bytes) + c.advance) - waited);
        break;
      case ScanStrategy::kDoubling:
        every_layer += c.own + c.copy +
                       rounds_seconds(num_ranks, c.compose, slowest.seconds(layer.carry_bytes, machine.both_ways),
                                      slowest.seconds(layer.carry_bytes, machine.early));
        break;
      case ScanStrategy::kAllGather:
        every_layer +=
            c.own + times(num_ranks - 1, slowest.seconds(layer.carry_bytes)) + times(num_ranks - 2, c.compose) + c.copy;
        break;
      case ScanStrategy::kHierarchical: {
        const double compose = machine.compose.seconds(3 * slice_carry);
        every_layer += c.own + machine.compose.seconds(2 * slice_carry) +
                       machine.inside.seconds((R - 1) * slice_carry, machine.both_ways) +
                       times(compositions_in_node(num_nodes, R), compose) +
                       rounds_seconds(num_nodes, compose, machine.between.seconds(slice_carry, machine.both_ways),
                                      machine.between.seconds(slice_carry, machine.early)) +
                       machine.compose.seconds(2 * slice_state) +
                       machine.inside.seconds((R - 1) * slice_state, handed_back);
        break;
      }
    }
  }
  return once + every_layer;
}

double exposed_in_step(ScanStrategy strategy, int64_t num_ranks, const std::vector<ScanLayer>& layers,
                       const ScanMachine& machine, int64_t passes, int64_t wraps) {
  if (num_ranks == 1) return 0;
  int64_t state_bytes = 0;
  for (const ScanLayer& layer : layers) state_bytes += layer.state_bytes;
  return 2 * static_cast<double>(passes) * exposed_in_pass(strategy, num_ranks, layers, machine) +
         static_cast<double>(wraps) * machine.slowest(num_ranks).seconds(state_bytes);
}

ScanStrategy cheapest_strategy(int64_t num_ranks, const std::vector<ScanLayer>& layers, const ScanMachine& machine) {
  return std::ranges::min(kScanStrategies, {},
                          [&](ScanStrategy strategy) { return exposed_in_pass(strategy, num_ranks, layers, machine); });
}

}  // namespace baton
