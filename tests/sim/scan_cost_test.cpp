// The cost model of the scan: answers by hand; and the strategies' own code on in-process ranks whose clocks are
// simulated, to count rounds and bytes and to see what a step exposes.
#include "comm/scan_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/memory.h"
#include "tests/run_ranks.h"

namespace baton {
namespace {

const Stream kHost{};
constexpr int64_t kStateNumel = 16, kCarryNumel = 24, kRows = 4;
constexpr ScanLayer kLayer{4 * kStateNumel, 4 * kCarryNumel, 2, kRows};

/// A message of n bytes takes 3 + n / 32 seconds; own 4, advance 5, a composition 5.5.
constexpr Link kMemory{1, 64};
ScanMachine machine(bool sends_wait) { return {{3, 32}, {3, 32}, 1, kMemory, sends_wait}; }
constexpr double kOwn = 4, kAdvance = 5, kCompose = 5.5;
/// The first rank advances before it sends, where others send their own carry.
constexpr double kLate = kAdvance - kOwn;

/// Messages carry the time at which they were posted. A message is there link.seconds(bytes) after both ends have
/// posted it; its sender waits for that or not.
class TimedGroup : public Group {
 public:
  /// `answers`: the same ranks again, on which receivers tell senders that wait when they were ready.
  TimedGroup(Group& ranks, Group& answers, const Link& link, bool sends_wait)
      : ranks_(ranks), answers_(answers), link_(link), sends_wait_(sends_wait) {}

  double now = 0;
  int64_t num_received = 0;
  void reset() {
    now = 0, num_received = 0;
    traffic_ = {};
  }

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }

  PendingPtr send(const Tensor& x, int to, const Stream& stream) override {
    traffic_.sent_bytes += x.bytes();
    auto message = std::make_unique<Message>(*this, x, sends_wait_);
    ranks_.send(x, to, stream)->wait();  // in-process sends are done at once
    ranks_.send(message->clock(message->mine), to, stream)->wait();
    if (sends_wait_) message->parts.push_back(answers_.recv(message->clock(message->theirs), to, stream));
    return message;
  }
  PendingPtr recv(const Tensor& x, int from, const Stream& stream) override {
    traffic_.received_bytes += x.bytes(), ++num_received;
    auto message = std::make_unique<Message>(*this, x, true);
    if (sends_wait_) answers_.send(message->clock(message->mine), from, stream)->wait();
    message->parts.push_back(ranks_.recv(x, from, stream));
    message->parts.push_back(ranks_.recv(message->clock(message->theirs), from, stream));
    return message;
  }
  void all_gather(const Tensor& x, const Tensor& out, const Stream& stream) override {
    traffic_.collective_bytes += x.bytes();
    ranks_.all_gather(x, out, stream);
    now = baton::all_reduce(ranks_, now, ReduceOp::kMax) + (size() - 1) * link_.seconds(x.bytes());
  }
  void all_reduce(const Tensor&, ReduceOp, const Stream&) override { FAIL() << "a scan reduces nothing"; }
  void broadcast(const Tensor&, int, const Stream&) override { FAIL() << "a scan broadcasts nothing"; }
  void barrier() override { ranks_.barrier(); }

 private:
  struct Message : Pending {
    Message(TimedGroup& group, const Tensor& x, bool takes_time)
        : group(group), bytes(x.bytes()), takes_time(takes_time), mine(group.now), theirs(group.now) {}
    static Tensor clock(double& time) { return {&time, Shape{1}, DType::kFloat64, {}}; }
    bool done() override { return false; }
    void wait() override {
      for (const PendingPtr& part : parts) part->wait();
      if (takes_time) group.now = std::max(group.now, std::max(mine, theirs) + group.link_.seconds(bytes));
    }
    TimedGroup& group;
    int64_t bytes;
    bool takes_time;
    double mine, theirs;  // when the two ends posted it
    std::vector<PendingPtr> parts;
  };

  Group &ranks_, &answers_;
  Link link_;
  bool sends_wait_;
};

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
    TimedGroup group(ranks, *answers[static_cast<size_t>(ranks.rank())], m.inside, m.sends_wait);
    group.set_ranks_per_node(static_cast<int>(m.ranks_per_node));
    const OwnedTensor scratch({StateScan::scratch_numel(strategy, group, kCarryNumel, kRows)}, DType::kFloat32);
    const OwnedTensor entering({kStateNumel}, DType::kFloat32), leaving({kStateNumel}, DType::kFloat32);
    StateScan scan(group, strategy, scratch);
    const auto run = [&](Direction direction) {
      ShardCarry shard;
      shard.numel = kCarryNumel;
      shard.rows = kRows;
      shard.widths = {kStateNumel / kRows, (kCarryNumel - kStateNumel) / kRows, 0};
      shard.advance = [&](const Tensor&, const Tensor&) { group.now += kAdvance; };
      shard.own = [&](const Tensor&) { group.now += kOwn; };
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

TEST(ScanCost, IsWhatTheStrategiesExpose) {
  constexpr int kLayers = 40;
  for (const bool sends_wait : {false, true})
    for (const ScanStrategy strategy : kScanStrategies)
      for (const int P : {2, 3, 8, 16, 32}) {
        SCOPED_TRACE(fmt::format("{} on {} ranks, sends wait: {}", to_string(strategy), P, sends_wait));
        const double exposed = simulate(strategy, P, kLayers, machine(sends_wait)).exposed;
        const double model = exposed_in_step(strategy, P, layers_of(kLayers), machine(sends_wait), 1, 0);
        if (strategy == ScanStrategy::kDoubling || strategy == ScanStrategy::kHierarchical) {
          EXPECT_NEAR(model / exposed, 1, 0.07);
        } else {
          EXPECT_DOUBLE_EQ(model, exposed);
        }
      }
}

/// Messages of latency alone: the simulation lets those of one exchange run side by side, whatever their bytes.
TEST(ScanCost, RoundsOfNodesAreTheModels) {
  constexpr int kLayers = 40;
  for (const bool sends_wait : {false, true})
    for (const auto& [P, R] : {std::pair{2, 2}, {4, 4}, {4, 2}, {8, 2}, {16, 4}, {32, 4}, {24, 2}}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} a node, sends wait: {}", P, R, sends_wait));
      const Link link{3, 1e30};
      const ScanMachine m{link, link, R, kMemory, sends_wait};
      const double exposed = simulate(ScanStrategy::kHierarchical, P, kLayers, m).exposed;
      EXPECT_NEAR(exposed_in_step(ScanStrategy::kHierarchical, P, layers_of(kLayers), m, 1, 0) / exposed, 1, 0.07);
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
              kAdvance + (P - 1) * 6 + (P - 2) * kCompose);
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
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kDoubling, 2, layers_of(10), machine(true)), 10 * (kOwn + 6) + kLate);
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kDoubling, 3, layers_of(10), machine(true)),
            10 * (kOwn + 2 * 6 + kCompose) + kLate);
  // Of eight, rank 3 takes two messages and sends three: three compositions.
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kDoubling, 8, layers_of(4), machine(false)),
            4 * (kOwn + 3 * kCompose + 3 * 6) + kLate);
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
  // A chain's ranks begin as late as its slowest layer has it; advance takes 9 s there, own 7, a composition 10. An
  // all-gather pays (10 s + 6) or (10 s + 12) a rank.
  const ScanLayer twice{2 * kLayer.state_bytes, 2 * kLayer.carry_bytes, kLayer.spans, kRows};
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kChain, 5, {kLayer, twice}, m), 2 * (5 + 9) + 2 * (18 + 9) + 14);
  EXPECT_EQ(exposed_in_pass(ScanStrategy::kAllGather, 5, {kLayer, twice}, m),
            (4 + 4 * 16 + 3 * 5.5) + (7 + 4 * 22 + 3 * 10) + 2);
  // Three windows are six passes; between windows the states of all layers: 10 s + 3 * 64 / 16.
  EXPECT_EQ(exposed_in_step(ScanStrategy::kChain, 5, {kLayer, twice}, m, 3, 4), 6 * 96 + 4 * 22);
  for (const ScanStrategy strategy : kScanStrategies) EXPECT_EQ(exposed_in_step(strategy, 1, layers_of(7), m, 3, 4), 0);
}

TEST(ScanCost, NodesOfSeveralRanks) {
  // A carry's half takes 1 s + 1.5 inside and 10 s + 3 between, a state's half 1 s + 1; a composition of halves 3.25.
  const ScanMachine m{{1, 32}, {10, 16}, 2, kMemory, false};
  const double in_node = kOwn + (1 + 1.5) + (1 + 1);
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
            7 * (kOwn + (1 + 2 * 1.5) + (1 + 2 * 1) + 3.25) + kLate);
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
