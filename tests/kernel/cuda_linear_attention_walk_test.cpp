// Walks over spans of several chunks (bfloat16), against the reference and against spans of one chunk.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/linear_attention.h"
#include "runtime/cuda.h"
#include "tests/reference/attention_runner.h"

namespace baton::test {
namespace {

constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector};
constexpr DType kBf16 = DType::kBFloat16;
constexpr int64_t kSpan = 2 * kChunk;
constexpr double kForget = -std::numeric_limits<double>::infinity();

const Stream& stream() {
  static const cuda::OwnedStream owned(0, false);
  return owned.stream();
}

AttentionProblem problem(const AttentionShape& shape, uint64_t seed) {
  AttentionProblem p = rounded(random_problem(shape, seed));
  p.span = p.walk = kSpan;
  EXPECT_TRUE(walks_take(shape, cuda::max_shared_bytes()));
  return p;
}
/// Starts at a chunk's first, second and last token, a span's first, and one after another; second row only.
void pack(AttentionProblem& p) {
  p.starts.resize(static_cast<size_t>(p.shape.B * p.shape.T));
  for (int64_t t : {1, 63, 64, 65, 127, 128, 200}) {
    if (t < p.shape.T) p.starts[static_cast<size_t>((p.shape.B - 1) * p.shape.T + t)] = 1;
  }
}

/// Per head, and prints the worst error of each tensor beside its bound.
void expect_right(const AttentionProblem& p) {
  const AttentionResult ref = token_reference(p), x = run_operator(p, kBf16, {}, stream());
  const std::vector<int64_t> whole{0, p.shape.T};
  for (const auto& [name, tensor] : ref) {
    const double error = relative_error(p, ref, x, kBf16, name, whole);
    EXPECT_LE(error, tolerance(kBf16, name)) << name;
    fmt::print("  {} {:.1e}", name, error);
  }
  fmt::print("\n");
}

/// Little enough for a race checker.
TEST(CudaAttentionWalk, OneOfEveryGate) {
  for (GateKind gate : kGates) {
    SCOPED_TRACE(to_string(gate));
    AttentionProblem p = problem({1, 140, 1, 64, 64, gate}, 17);
    pack(p);
    expect_right(p);
  }
  for (int64_t dim : {128, 256}) {  // fused; of clusters
    AttentionProblem p = problem({1, 264, 1, dim, dim, GateKind::kVector}, 17);
    expect_right(p);
    pack(p);
    expect_right(p);
  }
}

TEST(CudaAttentionWalk, EveryHeadDimension) {
  constexpr std::pair<int64_t, int64_t> kDims[] = {{64, 64},   {128, 128}, {64, 128},  {128, 64},
                                                   {256, 128}, {256, 512}, {128, 192}, {128, 256}};
  for (GateKind gate : kGates) {
    for (const auto& [K, V] : kDims) {
      const AttentionShape shape{2, 347, 2, K, V, gate};
      if (!walks_take(shape, cuda::max_shared_bytes())) continue;
      SCOPED_TRACE(fmt::format("{} K {} V {}", to_string(gate), K, V));
      fmt::print("{} {} x {}:", to_string(gate), K, V);
      AttentionProblem p = problem(shape, 12);
      expect_right(p);
      pack(p);
      expect_right(p);
    }
  }
}

TEST(CudaAttentionWalk, EveryLength) {
  for (GateKind gate : kGates) {
    for (int64_t T : {1, 2, 63, 64, 65, 127, 128, 129, 191, 257, 1033}) {
      SCOPED_TRACE(fmt::format("{} T {}", to_string(gate), T));
      for (int64_t K : {64, 128, 256}) {
        if (K == 256 && gate != GateKind::kVector) continue;
        AttentionProblem p = problem({1, T, 3, K, std::max<int64_t>(K, 128), gate}, 13);
        pack(p);
        expect_right(p);
      }
    }
  }
}

TEST(CudaAttentionWalk, EveryDecay) {
  constexpr std::pair<GateKind, int64_t> kCases[] = {
      {GateKind::kScalar, 64}, {GateKind::kVector, 64}, {GateKind::kVector, 128}, {GateKind::kVector, 256}};
  for (const auto& [gate, dim] : kCases) {
    for (double decay : {0.0, -1e-6, -5.0, -50.0, -1e3, -1e4, kForget}) {
      for (int64_t t : {-1, 0, 63, 64, 100, 128, 255}) {  // -1: everywhere
        SCOPED_TRACE(fmt::format("{} {} {} at {}", to_string(gate), dim, decay, t));
        AttentionProblem p = problem({1, 300, dim < 256 ? 2 : 1, dim, dim, gate}, 14);
        const auto per_token = static_cast<int64_t>(p.gk.size()) / 300;
        for (int64_t i = 0; i < static_cast<int64_t>(p.gk.size()); ++i) {
          if (t < 0 || i / per_token == t) p.gk[static_cast<size_t>(i)] = decay;
        }
        expect_right(p);
      }
    }
  }
}

/// Walks of a segment and a half between the anchors of scalar gates' gradients, or of three segments; cut at walks,
/// the bits are the same.
TEST(CudaAttentionWalk, ScalarGatesOfEveryStrengthOverSegments) {
  constexpr int64_t kLong = 6 * kChunk, T = 2 * kLong + 100;
  constexpr std::pair<double, bool> kCases[] = {{1.0, false}, {1.0, true}, {0.03, false}, {10.0, true}};
  for (int64_t dim : {64, 128}) {
    for (const auto& [strength, mixed] : kCases) {
      SCOPED_TRACE(fmt::format("{} x {}, strength {}, mixed {}", dim, dim, strength, mixed));
      AttentionProblem p = problem({2, T, 2, dim, dim, GateKind::kScalar}, 18);
      p.span = p.walk = kLong;
      for (size_t i = 0; i < p.gk.size(); ++i) p.gk[i] = mixed && i % 401 == 0 ? -20.0 : p.gk[i] * strength;
      expect_right(p);
      pack(p);
      const AttentionResult ref = token_reference(p), whole = run_operator(p, kBf16, {}, stream());
      expect_close(p, ref, whole, kBf16);
      EXPECT_TRUE(run_operator(p, kBf16, {0, kLong, 2 * kLong, T}, stream()) == whole);
      for (int64_t i = 0; i < 2 * T * 2; ++i) {
        if (p.starts[static_cast<size_t>(i / 2)] == 0) continue;
        EXPECT_EQ(whole.at("dgk")[static_cast<size_t>(i)], 0.0);
      }
      p.walk = 2 * kLong;
      const AttentionResult two = run_operator(p, kBf16, {}, stream());
      expect_close(p, ref, two, kBf16);
      EXPECT_TRUE(run_operator(p, kBf16, {0, 2 * kLong, T}, stream()) == two);
    }
  }
}

/// A document's numbers stay out of its neighbours' gradients however large they are.
TEST(CudaAttentionWalk, ScalarGatesBesideALargeDocument) {
  AttentionProblem p = problem({1, 700, 2, 128, 128, GateKind::kScalar}, 19);
  p.span = p.walk = 16 * kChunk;
  p.starts.resize(700);
  p.starts[200] = p.starts[421] = 1;
  AttentionProblem large = p;
  const auto grow = [](std::vector<double>& x) {
    for (size_t i = x.size() / 700 * 200; i < x.size() / 700 * 421; ++i) x[i] *= 8;
  };
  grow(large.q), grow(large.k), grow(large.v), grow(large.dout);
  const AttentionResult x = run_operator(p, kBf16, {}, stream()), y = run_operator(large, kBf16, {}, stream());
  for (size_t i = 0; i < x.at("dgk").size(); ++i) {
    if (i / 2 >= 200 && i / 2 < 421) continue;
    EXPECT_EQ(x.at("dgk")[i], y.at("dgk")[i]) << i;
  }
}

TEST(CudaAttentionWalk, ShardsAgreeAndGiveTheSameBitsAtSpans) {
  for (GateKind gate : kGates) {
    AttentionProblem p = problem({2, 7 * kSpan + 20, 2, 64, 64, gate}, 15);
    pack(p);
    const int64_t T = p.shape.T;
    const AttentionResult whole = run_operator(p, kBf16, {}, stream());
    EXPECT_TRUE(run_operator(p, kBf16, {}, stream()) == whole) << "twice, " << to_string(gate);
    EXPECT_TRUE(run_operator(p, kBf16, {0, kSpan, kSpan, 4 * kSpan, T}, stream()) == whole) << to_string(gate);
    p.walk = 2 * kSpan;
    EXPECT_TRUE(run_operator(p, kBf16, {0, 2 * kSpan, 2 * kSpan, 6 * kSpan, T}, stream()) ==
                run_operator(p, kBf16, {}, stream()))
        << "walks of two spans, " << to_string(gate);
    const AttentionResult ref = token_reference(p);
    const std::vector<int64_t> uneven{0, 0, 90, 417, 449, 700, T}, tiny{0, 1, 2, 416, 417, 418, T};
    const AttentionResult cut = run_operator(p, kBf16, uneven, stream());
    expect_close(p, ref, cut, kBf16);
    expect_close(p, ref, run_operator(p, kBf16, tiny, stream()), kBf16);
    for (const auto& [name, x] : whole) {
      EXPECT_LE(relative_error(p, whole, cut, kBf16, name, uneven), 1e-2) << name << " " << to_string(gate);
    }
  }
}

TEST(CudaAttentionWalk, GradientsOfManyPartsAreThoseOfOne) {
  for (GateKind gate : {GateKind::kScalar, GateKind::kVector}) {
    const int64_t V = gate == GateKind::kScalar ? 128 : 64;  // where K = V these need no chunks' states
    AttentionProblem p = problem({1, 65 * kSpan + 20, 16, 64, V, gate}, 19);
    pack(p);
    AttentionShape s = p.shape;
    s.span = s.walk = kSpan;
    EXPECT_EQ(AttentionParts::of(s).walks, 33);
    EXPECT_TRUE(run_operator(p, kBf16, {0, 9 * kSpan, 30 * kSpan, s.T}, stream()) ==
                run_operator(p, kBf16, {}, stream()))
        << to_string(gate);
    p = problem({65, 20, 16, 64, V, gate}, 20);
    s.B = 65, s.T = 20;
    EXPECT_EQ(AttentionParts::of(s).batches, 33);
    expect_right(p);
  }
}

/// Walks of one span and of two, over all of the shard and over parts of it.
TEST(CudaAttentionWalk, EndsThatNobodyWantsAreLeftOut) {
  for (GateKind gate : kGates) {
    for (int64_t dim : {64, 128}) {
      for (int64_t T : {40, 128, 200, 256, 300, 700}) {
        for (int64_t walk : {kSpan, 2 * kSpan}) {
          SCOPED_TRACE(fmt::format("{} {} T {} walk {}", to_string(gate), dim, T, walk));
          AttentionProblem p = problem({2, T, 2, dim, dim, gate}, 18);
          p.walk = walk;
          expect_same_without_ends(p, kBf16, stream());
          pack(p);
          expect_same_without_ends(p, kBf16, stream());
          expect_right(p);
        }
      }
    }
  }
}

TEST(CudaAttentionWalk, StateAtAnyToken) {
  for (GateKind gate : kGates) {
    AttentionProblem p = problem({2, 300, 2, 64, 64, gate}, 16);
    p.walk = 2 * kSpan;
    for (int64_t t : {0, 1, 64, 127, 128, 200, 299, 300}) {
      SCOPED_TRACE(fmt::format("{} token {}", to_string(gate), t));
      const AttentionProblem before = take_tokens(p, 0, t), after = take_tokens(p, t, 300);
      const AttentionResult ref{{"h", token_reference(before).at("ht")}, {"dh", token_reference(after).at("dh0")}};
      expect_close(p, ref, run_states_at(p, kBf16, t, stream()), kBf16);
    }
  }
}

}  // namespace
}  // namespace baton::test
