// The cost model of the scan: answers by hand; and the strategies' own code on in-process ranks whose clocks are
// simulated, to count rounds and bytes and to see what a step exposes.
#include "comm/scan_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/memory.h"
#include "tests/run_ranks.h"
#include "tests/timed_group.h"

namespace baton {
namespace {

const Stream kHost{};
constexpr int64_t kStateNumel = 16, kCarryNumel = 24, kRows = 4;
constexpr ScanLayer kLayer{4 * kStateNumel, 4 * kCarryNumel, 2, kRows};

/// A message of n bytes takes 3 + n / 32 seconds; own 4, advance 5, a composition 5.5, the copy of a state 3.
constexpr Link kMemory{1, 64};
ScanMachine machine(bool sends_wait) { return {{3, 32}, {3, 32}, 1, kMemory, sends_wait}; }
constexpr double kOwn = 4, kAdvance = 5, kCompose = 5.5, kCopy = 3;
/// The first rank advances and copies what leaves it before it sends, where others send their own carry.
constexpr double kLate = kAdvance + kCopy - kOwn;

struct Outcome {
  double exposed = 0;
  int64_t most_received = 0;                          // by any rank, of messages in a pass
  int64_t most_sent_bytes = 0, collective_bytes = 0;  // by any rank, in a pass
};

/// A step of `layers` forward and reversed, each of `work` seconds and an advance on every rank, then a barrier.
Outcome simulate(ScanStrategy strategy, int P, int layers, const ScanMachine& m) {
  constexpr double kWork = 1000;
  Outcome outcome;
  const auto answers = make_local_groups(P);
  run_ranks(P, [&](Group& ranks) {
    TimedGroup group(ranks, *answers[static_cast<size_t>(ranks.rank())], m);
    // Copies are made without being asked for: a clock has them before what follows them.
    const bool by_nodes = strategy == ScanStrategy::kHierarchical && m.ranks_per_node > 1;
    const double to_places = by_nodes ? kMemory.seconds(2 * kLayer.slice(kLayer.carry_bytes, m.ranks_per_node)) : 0;
    const double to_entering =
        by_nodes ? kMemory.seconds(2 * kLayer.slice(kLayer.state_bytes, m.ranks_per_node)) : kCopy;
    const OwnedTensor scratch({StateScan::scratch_numel(strategy, group, kCarryNumel, kRows)}, DType::kFloat32);
    const OwnedTensor entering({kStateNumel}, DType::kFloat32), leaving({kStateNumel}, DType::kFloat32);
    StateScan scan(group, strategy, scratch);
    const auto run = [&](Direction direction) {
      ShardCarry shard;
      shard.numel = kCarryNumel;
      shard.rows = kRows;
      shard.widths = {kStateNumel / kRows, (kCarryNumel - kStateNumel) / kRows, 0};
      const bool is_first = group.rank() == (direction == Direction::kForward ? 0 : P - 1);
      shard.advance = [&, is_first](const Tensor&, const Tensor&) {
        group.now += kAdvance;
        if (strategy != ScanStrategy::kChain) group.now += is_first ? kCopy + to_places : to_entering;
      };
      shard.own = [&](const Tensor&) { group.now += kOwn + to_places; };
      shard.compose = [&](const Stretch& first, const Stretch&, const Tensor&) {
        group.now += kMemory.seconds(3 * kLayer.slice(kLayer.carry_bytes, kRows) *
                                     (first.rows.size() > 0 ? first.rows.size() : kRows));
      };
      group.now += kWork;
      scan.begin(direction, entering, leaving, shard, kHost);
      scan.finish(kHost);
    };
    run(Direction::kForward), run(Direction::kReversed);  // neighbours compare shapes
    group.reset();
    for (int layer = 0; layer < layers; ++layer) run(Direction::kForward);
    const int64_t received = all_reduce(ranks, group.num_received / layers, ReduceOp::kMax);
    const int64_t sent = all_reduce(ranks, group.traffic().sent_bytes / layers, ReduceOp::kMax);
    const int64_t gathered = all_reduce(ranks, group.traffic().collective_bytes / layers, ReduceOp::kMax);
    for (int layer = 0; layer < layers; ++layer) run(Direction::kReversed);
    const double end = all_reduce(ranks, group.now, ReduceOp::kMax);
    if (ranks.rank() == 0) outcome = {end - 2 * layers * (kWork + kAdvance), received, sent, gathered};
  });
  return outcome;
}

std::vector<ScanLayer> layers_of(int64_t num) { return std::vector<ScanLayer>(static_cast<size_t>(num), kLayer); }

/// machine(sends_wait), on which a message both ways costs more, and one that was sent before it is awaited less.
ScanMachine uneven_machine(bool sends_wait) {
  ScanMachine m = machine(sends_wait);
  m.early = sends_wait ? 1 : 0.5, m.both_ways = 1.75;
  return m;
}

void expect_model(ScanStrategy strategy, int P, const ScanMachine& m, double tolerance) {
  constexpr int kLayers = 40;
  SCOPED_TRACE(fmt::format("{} on {} ranks, {} a node, sends wait: {}, early {}, both ways {}", to_string(strategy), P,
                           m.ranks_per_node, m.sends_wait, m.early, m.both_ways));
  const double exposed = simulate(strategy, P, kLayers, m).exposed;
  EXPECT_NEAR(exposed_in_step(strategy, P, layers_of(kLayers), m, 1, 0) / exposed, 1, tolerance);
}

TEST(ScanCost, IsWhatTheStrategiesExpose) {
  for (const bool sends_wait : {false, true})
    for (const ScanMachine& m : {machine(sends_wait), uneven_machine(sends_wait)})
      for (const int P : {2, 3, 8, 16, 32}) {
        expect_model(ScanStrategy::kChain, P, m, 1e-12);
        expect_model(ScanStrategy::kAllGather, P, m, 1e-12);
        expect_model(ScanStrategy::kDoubling, P, m, sends_wait ? 0.07 : 0.02);
      }
}

TEST(ScanCost, IsWhatNodesExpose) {
  for (const bool sends_wait : {false, true})
    for (ScanMachine m : {machine(sends_wait), uneven_machine(sends_wait)})
      for (const auto& [P, R] : {std::pair{2, 2}, {4, 4}, {4, 2}, {8, 2}, {16, 4}, {32, 4}, {24, 2}}) {
        m.ranks_per_node = R;
        expect_model(ScanStrategy::kHierarchical, P, m, sends_wait ? 0.07 : 0.02);
      }
}

TEST(ScanCost, RoundsAndBytesAreTheModels) {
  const int64_t state = kLayer.state_bytes, carry = kLayer.carry_bytes;
  for (const auto& [P, rounds] : {std::pair{2, 1}, {3, 2}, {8, 3}, {16, 4}, {32, 5}}) {
    SCOPED_TRACE(P);
    const Outcome chain = simulate(ScanStrategy::kChain, P, 2, machine(false));
    EXPECT_EQ(chain.most_received, 1);
    EXPECT_EQ(chain.most_sent_bytes, state);
    const Outcome doubling = simulate(ScanStrategy::kDoubling, P, 2, machine(false));
    EXPECT_EQ(doubling.most_received, rounds);
    EXPECT_EQ(doubling.most_sent_bytes, rounds * carry);
    const Outcome gather = simulate(ScanStrategy::kAllGather, P, 2, machine(false));
    EXPECT_EQ(gather.collective_bytes, carry);
    // A message takes 5 s of a state, 6 s of a carry.
    EXPECT_EQ(exposed_in_pass(ScanStrategy::kChain, P, layers_of(1), machine(false)), (P - 1) * (5 + kAdvance));
    EXPECT_EQ(exposed_in_pass(ScanStrategy::kAllGather, P, layers_of(1), machine(false)),
              kAdvance + 2 * kCopy + (P - 1) * 6 + (P - 2) * kCompose);
  }
  // 32 ranks, 4 or 8 a node, 3 or 2 rounds between nodes. A rank with a row of the four gets both parts of it from the
  // node's others, and a row of the state from each that has one; it sends 24 bytes a row of a carry, 16 of a state.
  for (const auto& [R, received, sent] :
       {std::array{4, 2 * 3 + 3 + 3, (3 + 3) * 24 + 3 * 16}, {8, 2 * 7 + 2 + 3, (3 + 2) * 24 + 7 * 16}}) {
    ScanMachine nodes = machine(false);
    nodes.ranks_per_node = R;
    const Outcome outcome = simulate(ScanStrategy::kHierarchical, 32, 2, nodes);
    EXPECT_EQ(outcome.most_received, received);
    EXPECT_EQ(outcome.most_sent_bytes, sent);
    EXPECT_EQ(most_sent(ScanStrategy::kHierarchical, 32, kLayer, R), sent);
  }
  // The third of three ranks composes what came from the first with what came from the second.
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kDoubling, 2, layers_of(10), machine(true)), 10 * (kOwn + 6 + kCopy) + kLate);
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kDoubling, 3, layers_of(10), machine(true)),
            10 * (kOwn + 2 * 6 + kCompose + kCopy) + kLate);
  // Of eight, rank 4 takes three messages and sends two: three compositions.
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kDoubling, 8, layers_of(4), machine(false)),
            4 * (kOwn + 3 * kCompose + 3 * 6 + kCopy) + kLate);
  // In each layer a rank waits for what it receives; and where sends wait, a rank between two others for that, too.
  for (const auto& [sends_wait, waits] : {std::pair{false, 1}, {true, 2}})
    EXPECT_EQ(exposed_in_pass(ScanStrategy::kChain, 3, layers_of(10), machine(sends_wait)),
              2 * (5 + kAdvance) + 9 * waits * 5);
}

TEST(ScanCost, NodesWindowsAndUnequalLayers) {
  // Five ranks, two a node: two hops inside (1 s + 2), two between (10 s + 4), for which some rank waits in each layer.
  const ScanMachine m{{1, 32}, {10, 16}, 2, kMemory, false};
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kChain, 5, layers_of(7), m),
            2 * (3 + kAdvance) + 2 * (14 + kAdvance) + 6 * 14);
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kChain, 2, layers_of(7), m), 3 + kAdvance + 6 * 3);
  // A chain's ranks begin as late as its slowest layer has it; advance takes 9 s there, own 7, a composition 10, a copy
  // 5. An all-gather pays (10 s + 6) or (10 s + 12) a rank.
  const ScanLayer twice{2 * kLayer.state_bytes, 2 * kLayer.carry_bytes, kLayer.spans, kRows};
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kChain, 5, {kLayer, twice}, m), 2 * (5 + 9) + 2 * (18 + 9) + 14);
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kAllGather, 5, {kLayer, twice}, m),
            (4 + 4 * 16 + 3 * 5.5 + 3) + (7 + 4 * 22 + 3 * 10 + 5) + (9 + 5 - 7));
  // Three windows are six passes; between windows the states of all layers: 10 s + 3 * 64 / 16.
  EXPECT_EQ(exposed_in_step(ScanStrategy::kChain, 5, {kLayer, twice}, m, 3, 4), 6 * 96 + 4 * 22);
  for (const ScanStrategy strategy : kScanStrategies) EXPECT_EQ(exposed_in_step(strategy, 1, layers_of(7), m, 3, 4), 0);
}

TEST(ScanCost, NodesOfSeveralRanks) {
  // A carry's half takes 1 s + 1.5 inside and 10 s + 3 between, a state's half 1 s + 1; of halves a composition takes
  // 3.25, the copy of a carry 2.5, of a state 2.
  const ScanMachine m{{1, 32}, {10, 16}, 2, kMemory, false};
  const double in_node = kOwn + 2.5 + (1 + 1.5) + (1 + 1) + 2;
  const auto exposed = [&](int64_t P, int64_t layers, bool sends_wait) {
    ScanMachine machine = m;
    machine.sends_wait = sends_wait;
    return exposed_in_pass(ScanStrategy::kHierarchical, P, layers_of(layers), machine);
  };
  EXPECT_EQ(exposed(2, 7, false), 7 * in_node + kLate);                        // nothing to compose
  EXPECT_EQ(exposed(4, 7, false), 7 * (in_node + 1 * 3.25 + 1 * 13) + kLate);  // prefix or what enters, of one rank
  // A node between others also hands on itself. Its ranks compose twice, and once for doubling; three nodes: two
  // rounds.
  for (const bool sends_wait : {false, true})
    EXPECT_EQ(exposed(6, 7, sends_wait), 7 * (in_node + 3 * 3.25 + 2 * 13) + kLate);
  // Nodes that are not equal count as one rank each.
  EXPECT_EQ(exposed(5, 7, false), exposed_in_pass(ScanStrategy::kDoubling, 5, layers_of(7), m));
  EXPECT_EQ(most_sent(ScanStrategy::kHierarchical, 6, kLayer, 2), (96 + 64) / 2 + 2 * 96 / 2);
  EXPECT_EQ(most_sent(ScanStrategy::kHierarchical, 5, kLayer, 2), 3 * 96);
  // Of three ranks one has two of four rows: it gets them from two others and gives them back; it composes once.
  const ScanMachine three{{1, 32}, {10, 16}, 3, kMemory, false};
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kHierarchical, 3, layers_of(7), three),
            7 * (kOwn + 2.5 + (1 + 2 * 1.5) + (1 + 2 * 1) + 2 + 3.25) + kLate);
}

/// 3 s, and a byte 1 / 32 s: half of that where the message was there already, twice where another comes against it.
TEST(ScanCost, MessagesSentEarlyAndBothWays) {
  ScanMachine m = machine(false);
  m.early = 0.5, m.both_ways = 2;
  const auto exposed = [&](ScanStrategy strategy, int64_t P) { return exposed_in_pass(strategy, P, layers_of(7), m); };
  EXPECT_EQ(exposed(ScanStrategy::kChain, 4), 3 * (5 + kAdvance) + 6 * 4);  // 3 s + 64 / 32, and half of that
  EXPECT_EQ(exposed(ScanStrategy::kDoubling, 2), 7 * (kOwn + 4.5 + kCopy) + kLate);
  // Of four ranks the third takes the second's while it sends to the fourth, then the first's, and composes once.
  EXPECT_EQ(exposed(ScanStrategy::kDoubling, 4), 7 * (kOwn + 9 + 4.5 + kCompose + kCopy) + kLate);
  m.ranks_per_node = 2;  // halves: 3 s + 2 * 1.5 and 3 s + 1, which is handed to the second alone, or 3 s + 2 * 1
  EXPECT_EQ(exposed(ScanStrategy::kHierarchical, 2), 7 * (kOwn + 2.5 + 6 + 4 + 2) + kLate);
  EXPECT_EQ(exposed(ScanStrategy::kHierarchical, 4), 7 * (kOwn + 2.5 + 6 + 3.25 + 3.75 + 5 + 2) + kLate);
}

TEST(ScanCost, TheCheapestChangesWithRanksAndLinks) {
  const std::vector<ScanLayer> layers(24, {2 << 20, (2 << 20) + (4 << 10), 4, 8});
  const ScanMachine fast{{15e-6, 300e9}, {25e-6, 40e9}, 8, {3e-6, 3e12}, false};
  EXPECT_EQ(cheapest_strategy(1, layers, fast), ScanStrategy::kChain);
  EXPECT_EQ(cheapest_strategy(8, layers, fast), ScanStrategy::kChain);
  EXPECT_EQ(cheapest_strategy(1024, layers, fast), ScanStrategy::kHierarchical);
  EXPECT_EQ(cheapest_strategy(1025, layers, fast), ScanStrategy::kDoubling);
  ScanMachine late = fast;  // one layer, slow to compose: nothing hides the chain
  late.inside = late.between = {1, 1e12};
  EXPECT_EQ(cheapest_strategy(8, {layers[0]}, late), ScanStrategy::kHierarchical);  // two rounds
  late.ranks_per_node = 1;
  EXPECT_EQ(cheapest_strategy(8, {layers[0]}, late), ScanStrategy::kDoubling);
}

}  // namespace
}  // namespace baton
