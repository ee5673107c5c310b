// One call's tokens cut into consecutive shards, as ranks hold them, against the whole: every tensor, per shard and
// head.
#include <gtest/gtest.h>

#include "tests/reference/attention_runner.h"

namespace baton::test {
namespace {

constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector,
                               GateKind::kBilinear};

/// Shard r of n is [floor(r T / n), floor((r + 1) T / n)), in units of `unit` tokens.
std::vector<int64_t> even_cuts(int64_t T, int64_t n, int64_t unit) {
  std::vector<int64_t> cuts;
  const int64_t units = (T + unit - 1) / unit;
  for (int64_t r = 0; r <= n; ++r) cuts.push_back(std::min(T, r * units / n * unit));
  return cuts;
}

AttentionProblem packed(GateKind gate, int64_t T) {
  AttentionProblem p = random_problem({2, T, 3, 16, 24, gate}, 21);
  p.starts.resize(static_cast<size_t>(2 * T));
  for (int64_t t : {90, 128, 129, 200}) p.starts[static_cast<size_t>(T + t)] = 1;  // the second row only
  return p;
}

TEST(LinearAttentionShards, AgreeWithOneShard) {
  for (GateKind gate : kGates) {
    const AttentionProblem p = packed(gate, 331);
    for (DType dtype : {DType::kFloat64, DType::kFloat32}) {
      const AttentionResult whole = run_operator(p, dtype);
      for (int64_t n : {2, 3, 4, 5, 8, 16, 17}) {
        SCOPED_TRACE(fmt::format("{} {} {} shards", to_string(gate), to_string(dtype), n));
        const std::vector<int64_t> cuts = even_cuts(331, n, 1);
        expect_close(p, whole, run_operator(p, dtype, cuts), dtype, cuts);
      }
    }
  }
}

TEST(LinearAttentionShards, UnevenEmptyAndTinyShards) {
  for (GateKind gate : kGates) {
    SCOPED_TRACE(to_string(gate));
    const AttentionProblem p = packed(gate, 260);
    const std::vector<int64_t> cuts{0, 0, 1, 2, 65, 65, 129, 259, 260, 260};
    const AttentionResult ref = token_reference(p);
    for (DType dtype : {DType::kFloat64, DType::kFloat32}) {
      expect_close(p, ref, run_operator(p, dtype, cuts), dtype, cuts);
    }
  }
}

TEST(LinearAttentionShards, SameBitsWhereCutAtChunkBoundaries) {
  const int64_t T = 9 * kChunk + 20;
  for (GateKind gate : kGates) {
    const AttentionProblem p = packed(gate, T);
    for (DType dtype : {DType::kFloat64, DType::kFloat32}) {
      const AttentionResult whole = run_operator(p, dtype);
      for (int64_t n : {2, 3, 4, 5, 8, 16, 17}) {
        const AttentionResult cut = run_operator(p, dtype, even_cuts(T, n, kChunk));
        for (const auto& [name, x] : whole) {
          EXPECT_EQ(x, cut.at(name)) << name << " of " << to_string(gate) << " in " << n << " shards";
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::test
