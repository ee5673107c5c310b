// Every strategy of the scan under the operator, against the same shards one after another: every tensor of every rank,
// and what is sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/carry.h"
#include "runtime/rng.h"
#include "tests/operator_ranks.h"

namespace baton::test {
namespace {

constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector,
                               GateKind::kBilinear};
constexpr int kRanks[] = {1, 2, 3, 5, 8, 16, 17};

TEST(ScanStrategies, AgreeWithTheSerialChain) {
  for (const GateKind gate : kGates)
    for (const DType dtype : {DType::kFloat32, DType::kFloat64})
      for (const int P : kRanks) expect_serial(weak_problem(gate, 230), dtype, even_shards(230, P));
}

TEST(ScanStrategies, DocumentsStartAnywhere) {
  for (const GateKind gate : kGates)
    for (const int P : kRanks) {
      AttentionProblem p = weak_problem(gate, 230);
      p.starts.assign(2 * 230, 0);
      const std::vector<int64_t> cuts = even_shards(230, P);
      // The first row at tokens in the midst, two of them neighbours; the second at a border and before it.
      for (const int64_t t : {60, 61, 150}) p.starts[static_cast<size_t>(t)] = 1;
      for (const int64_t t : {cuts[1] % 230, cuts[1] - 1}) p.starts[static_cast<size_t>(230 + t)] = 1;
      for (const DType dtype : {DType::kFloat32, DType::kFloat64}) expect_serial(p, dtype, cuts);
    }
}

/// Shards that grow from rank to rank, the first ones empty where ranks are many; and as no formula has them.
TEST(ScanStrategies, UnevenAndEmptyShards) {
  std::vector<std::vector<int64_t>> layouts{
      {0, 0, 1, 2, 130, 130, 130, 131, 200}, {0, 64, 200, 200}, {0, 0, 0, 200, 200, 200}};
  for (const int P : kRanks) {
    std::vector<int64_t>& cuts = layouts.emplace_back();
    for (int r = 0; r <= P; ++r) cuts.push_back(200 * r * r / (P * P));
  }
  for (const GateKind gate : kGates) {
    AttentionProblem p = weak_problem(gate, 200);
    for (const std::vector<int64_t>& cuts : layouts) {
      p.starts.clear();
      for (const DType dtype : {DType::kFloat32, DType::kFloat64}) expect_serial(p, dtype, cuts);
      p.starts.assign(2 * 200, 0);
      p.starts[1] = p.starts[200 + 130] = 1;
      expect_serial(p, DType::kFloat64, cuts);
    }
  }
}

TEST(ScanStrategies, StrongAndInfiniteGates) {
  for (const GateKind gate : {GateKind::kScalar, GateKind::kVector, GateKind::kBilinear})
    for (const double strong : {-5.0, -50.0, -1e4, static_cast<double>(-INFINITY)}) {
      AttentionProblem p = weak_problem(gate, 230);
      for (size_t i = 0; i < p.gk.size(); ++i)
        if (random_uniform(9, 1, i) < 0.02) p.gk[i] = strong;
      for (size_t i = 0; i < p.gv.size(); ++i)
        if (random_uniform(9, 2, i) < 0.02) p.gv[i] = strong;
      for (const DType dtype : {DType::kFloat32, DType::kFloat64}) expect_serial(p, dtype, even_shards(230, 5));
    }
}

/// Shards of a token, or of none.
TEST(ScanStrategies, LengthsAroundAChunkAndUnderTheRankCount) {
  for (const GateKind gate : kGates)
    for (const int64_t T : {int64_t{1}, int64_t{2}, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk + 1, int64_t{13}})
      for (const int P : kRanks) expect_serial(weak_problem(gate, T), DType::kFloat32, even_shards(T, P));
}

enum class Place { kEverywhere, kOneChannel, kBorders };

/// Gates of g everywhere, in one channel (of fixed decays: head), or at both sides of every border; nowhere else.
AttentionProblem with_gates(AttentionProblem p, double g, Place place, const std::vector<int64_t>& cuts) {
  const bool fixed = p.shape.gate == GateKind::kFixed;
  for (auto* gates : {&p.gk, &p.gv}) {
    const auto row = static_cast<int64_t>(gates->size()) / (fixed ? 1 : p.shape.B * p.shape.T);
    for (int64_t i = 0; i < static_cast<int64_t>(gates->size()); ++i) {
      const int64_t t = i / row % p.shape.T;
      const bool at_border = std::ranges::any_of(cuts, [&](int64_t cut) { return t == cut || t == cut - 1; });
      if (place == Place::kEverywhere || (place == Place::kOneChannel ? i % row == 0 : at_border))
        (*gates)[static_cast<size_t>(i)] = g;
    }
  }
  return p;
}

TEST(ScanStrategies, GatesOfAnyStrength) {
  constexpr int64_t kTokens = 100;
  for (const GateKind gate : {GateKind::kFixed, GateKind::kScalar, GateKind::kVector, GateKind::kBilinear})
    for (const double g : {0.0, -1e-6, -5.0, -50.0, -1e3, -1e4, static_cast<double>(-INFINITY)})
      for (const int P : kRanks)
        for (const Place place : {Place::kEverywhere, Place::kOneChannel, Place::kBorders}) {
          if (gate == GateKind::kFixed && place == Place::kBorders) continue;
          const std::vector<int64_t> cuts = even_shards(kTokens, P);
          SCOPED_TRACE(fmt::format("gates of {}, kind of place {}", g, static_cast<int>(place)));
          expect_serial(with_gates(weak_problem(gate, kTokens), g, place, cuts), DType::kFloat32, cuts);
        }
}

TEST(ScanStrategies, ADocumentStartStopsEverythingBeforeIt) {
  constexpr int64_t kTokens = 80, kStart = 35;
  for (const GateKind gate : kGates)
    for (const ScanStrategy strategy : kScanStrategies)
      for (const int P : kRanks)
        for (const int R : node_sizes(strategy, P)) {
          AttentionProblem p = weak_problem(gate, kTokens);
          p.starts.assign(2 * kTokens, 0);
          p.starts[kStart] = p.starts[kTokens + kStart] = 1;
          const std::vector<int64_t> cuts = even_shards(kTokens, P);
          const auto run = [&] { return run_on_ranks(p, DType::kFloat32, cuts, strategy, 0, R); };
          const auto before = run();
          for (double& x : p.h0) x *= 1e20;
          for (double& x : p.dht) x *= 1e20;
          const auto after = run();
          for (size_t rank = 0; rank < before.size(); ++rank)
            for (const char* state : {"ht", "dh0"}) {
              const bool kept = state == std::string("ht") ? kStart < cuts[rank + 1] : kStart >= cuts[rank];
              EXPECT_EQ(before[rank].tensors.at(state) == after[rank].tensors.at(state), kept)
                  << to_string(gate) << " by " << to_string(strategy) << " rank " << rank << " of " << P << " "
                  << state;
            }
        }
}

TEST(ScanStrategies, AStartInEveryRowOfAShard) {
  for (const GateKind gate : kGates)
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      AttentionProblem p = weak_problem(gate, 700);
      p.starts.assign(2 * 700, 0);
      // Shards 1 (at its first and last token), 2 and 4 of 6.
      for (const int64_t t : {117, 300, 583}) p.starts[static_cast<size_t>(t)] = 1;
      for (const int64_t t : {232, 240, 470, 560}) p.starts[static_cast<size_t>(700 + t)] = 1;
      expect_serial(p, dtype, {0, 117, 233, 350, 467, 584, 700});
    }
}

/// Six shards, of which five have a span of 64 tokens; the sixth, of 50, forgets nothing in float64.
TEST(ScanStrategies, FixedDecaysThatUnderflow) {
  const std::vector<int64_t> cuts{0, 117, 234, 351, 468, 585, 635};
  AttentionProblem p = weak_problem(GateKind::kFixed, 635);
  p.gk = {-12, -15};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) expect_serial(p, dtype, cuts);
  const auto forgets = [](int64_t T, double log_decay, DType dtype, double early_send) {
    AttentionShape s;
    s.T = T, s.span = 64;
    return decays_forget(s, dtype, log_decay, early_send);
  };
  EXPECT_TRUE(forgets(117, -1.65, DType::kFloat32, 0));
  EXPECT_FALSE(forgets(117, -1.6, DType::kFloat32, 0));  // its two spans together would
  EXPECT_FALSE(forgets(117, -1.65, DType::kFloat64, 0));
  EXPECT_TRUE(forgets(50, -2.1, DType::kFloat32, 0));
  EXPECT_FALSE(forgets(50, -2.0, DType::kFloat32, 0));
  EXPECT_TRUE(forgets(117, -0.2, DType::kFloat64, 1e-10));
  EXPECT_FALSE(forgets(117, -0.2, DType::kFloat64, 1e-11));
  EXPECT_FALSE(forgets(0, -1e4, DType::kFloat32, 0.5));
}

/// A chain that takes decays under a bound for nothing: what enters is off by less than the bound says, and only there.
TEST(ScanStrategies, EarlySendErrsByItsBound) {
  const std::vector<int64_t> cuts = even_shards(351, 3);  // shards of 117 tokens
  AttentionProblem p = weak_problem(GateKind::kFixed, 351);
  p.gk = {-0.2, -0.25};  // exp(-23.4) is 7e-11
  const auto run = [&](double early_send) {
    return run_on_ranks(p, DType::kFloat64, cuts, ScanStrategy::kChain, 0, 1, {}, early_send);
  };
  const auto exact = run(0), kept = run(1e-11), early = run(1e-10);
  const auto off = [&](int reversed, size_t rank, const std::vector<double>& before) {
    const std::vector<double>&mine = early[rank].entered[reversed], &other = exact[rank].entered[reversed];
    double most = 0;
    for (size_t i = 0; i < before.size(); ++i)
      most = std::max(most, std::abs(mine[i] - other[i]) / std::abs(before[i]));
    return most;
  };
  EXPECT_EQ(off(0, 1, p.h0), 0);  // the first rank has nothing to wait for
  EXPECT_EQ(off(1, 1, p.dht), 0);
  for (const int reversed : {0, 1}) {
    const double second = off(reversed, reversed == 0 ? 2 : 0, exact[1].entered[reversed]);
    EXPECT_GT(second, 1e-12);
    EXPECT_LT(second, 1e-10);
  }
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(kept[rank].tensors, exact[rank].tensors);
}

TEST(ScanStrategies, AgreeUnderRandomDelays) {
  for (const uint64_t seed : {1, 2, 3})
    for (const GateKind gate : kGates)
      for (const int P : {3, 8, 17}) expect_serial(weak_problem(gate, 100), DType::kFloat32, even_shards(100, P), seed);
}

/// One node composes in rank order, as all_gather does; nodes of one rank are doubling.
TEST(ScanStrategies, HierarchicalHasTheBitsOfAllGatherInOneNodeAndOfDoublingInNodesOfOne) {
  for (const GateKind gate : kGates)
    for (const int P : {2, 3, 8}) {
      const AttentionProblem p = weak_problem(gate, 100);
      const std::vector<int64_t> cuts = even_shards(100, P);
      for (const int R : {1, P}) {
        const auto other = R == 1 ? ScanStrategy::kDoubling : ScanStrategy::kAllGather;
        const auto mine = run_on_ranks(p, DType::kFloat32, cuts, ScanStrategy::kHierarchical, 0, R);
        const auto theirs = run_on_ranks(p, DType::kFloat32, cuts, other);
        for (size_t rank = 0; rank < mine.size(); ++rank)
          EXPECT_EQ(mine[rank].tensors, theirs[rank].tensors)
              << to_string(gate) << " rank " << rank << " of " << P << ", " << R << " a node";
      }
    }
}

TEST(ScanStrategies, BytesAreTheFormulaAtAnyLength) {
  for (const GateKind gate : kGates)
    for (const ScanStrategy strategy : kScanStrategies)
      for (const int P : kRanks)
        for (const int R : node_sizes(strategy, P))
          for (const int64_t T : {16, 64, 256}) {
            const AttentionProblem p = weak_problem(gate, T);
            const auto ranks = run_on_ranks(p, DType::kFloat32, even_shards(T, P), strategy, 0, R);
            for (int rank = 0; rank < P; ++rank)
              for (const bool reversed : {false, true})
                EXPECT_EQ(ranks[static_cast<size_t>(rank)].sent_bytes[reversed ? 1 : 0],
                          scan_bytes(p.shape, strategy, P, rank, R, reversed).sent)
                    << to_string(gate) << " " << to_string(strategy) << " rank " << rank << " of " << P << ", " << R
                    << " a node, T " << T;
          }
}

}  // namespace
}  // namespace baton::test
