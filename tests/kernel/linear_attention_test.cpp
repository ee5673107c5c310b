// The operator against the references: the shape matrix, the decay matrix, documents, threads, states at any token.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "kernels/divisor.h"
#include "kernels/shapes.h"
#include "tests/reference/attention_runner.h"

namespace baton::test {
namespace {

constexpr DType kDTypes[] = {DType::kFloat64, DType::kFloat32};
constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector,
                               GateKind::kBilinear};
constexpr double kForget = -std::numeric_limits<double>::infinity();

void expect_right(const AttentionProblem& p) {
  const AttentionResult ref = token_reference(p);
  for (DType dtype : kDTypes) {
    SCOPED_TRACE(to_string(dtype));
    expect_close(p, ref, run_operator(p, dtype), dtype);
  }
}

TEST(LinearAttention, EveryShape) {
  for (const NamedShape& named : kTestShapes) {
    SCOPED_TRACE(named.name);
    expect_right(random_problem(named.shape, 1));
  }
}

TEST(LinearAttention, EveryLengthOfAChunkAndEveryGate) {
  for (GateKind gate : kGates) {
    for (int64_t T = 1; T <= 2 * kChunk + 2; T += T < 20 ? 1 : 11) {
      SCOPED_TRACE(fmt::format("{} T {}", to_string(gate), T));
      expect_right(random_problem({1, T, 1, 6, 10, gate}, 2));
    }
  }
}

TEST(LinearAttention, NoTokensPassTheStateOn) {
  for (GateKind gate : kGates) {
    const AttentionProblem p = random_problem({2, 0, 3, 8, 12, gate}, 3);
    const AttentionResult x = run_operator(p, DType::kFloat64);
    EXPECT_EQ(x.at("ht"), p.h0);
    EXPECT_EQ(x.at("dh0"), p.dht);
  }
}

TEST(LinearAttention, ParallelFormAgreesWithTheTokenLoop) {
  for (const NamedShape& named : kTestShapes) {
    if (named.shape.T > 300) continue;
    SCOPED_TRACE(named.name);
    AttentionProblem p = random_problem(named.shape, 4);
    p.starts.resize(static_cast<size_t>(p.shape.B * p.shape.T));
    for (size_t i = 5; i < p.starts.size(); i += 37) p.starts[i] = 1;
    const AttentionResult ref = token_reference(p), quadratic{{"o", quadratic_reference(p)}};
    EXPECT_LE(relative_error(p, ref, quadratic, DType::kFloat64, "o"), tolerance(DType::kFloat64));
    EXPECT_LE(relative_error(p, quadratic, run_operator(p, DType::kFloat64), DType::kFloat64, "o"),
              tolerance(DType::kFloat64));
  }
}

/// Gates set to a value everywhere, in one channel, or at one token of each kind of boundary.
TEST(LinearAttention, EveryDecay) {
  const int64_t boundaries[] = {0, 1, 15, 16, 17, 31, 32, 63, 64, 65, 127, 128, 129};
  for (GateKind gate : {GateKind::kFixed, GateKind::kScalar, GateKind::kVector, GateKind::kBilinear}) {
    for (double value : {0.0, -1e-6, -5.0, -50.0, -1e3, -1e4, kForget}) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(gate), value));
      const AttentionProblem plain = random_problem({1, 130, 1, 8, 6, gate}, 5);
      AttentionProblem p = plain;
      p.gk.assign(p.gk.size(), value);
      p.gv.assign(p.gv.size(), value);
      expect_right(p);
      if (gate == GateKind::kFixed) continue;
      const int64_t row = static_cast<int64_t>(plain.gk.size()) / plain.shape.T;
      p = plain;
      for (size_t i = 0; i < p.gk.size(); i += row) p.gk[i] = value;
      expect_right(p);
      for (int64_t t : boundaries) {
        SCOPED_TRACE(fmt::format("token {}", t));
        p = plain;
        std::fill_n(p.gk.begin() + t * row, row, value);
        expect_right(p);
      }
    }
  }
}

TEST(LinearAttention, GateGradientIsExactlyZeroWhereTheStateIsForgotten) {
  for (GateKind gate : {GateKind::kScalar, GateKind::kVector, GateKind::kBilinear}) {
    AttentionProblem p = random_problem({1, 130, 1, 8, 6, gate}, 6);
    const int64_t row = static_cast<int64_t>(p.gk.size()) / p.shape.T;
    p.starts.resize(static_cast<size_t>(p.shape.T));
    p.starts[40] = p.starts[64] = 1;
    p.gk[70 * row] = kForget;
    const AttentionResult x = run_operator(p, DType::kFloat32);
    for (int64_t t : {40, 64}) {
      for (int64_t c = 0; c < row; ++c) EXPECT_EQ(x.at("dgk")[t * row + c], 0.0);
    }
    EXPECT_EQ(x.at("dgk")[70 * row], 0.0);
    for (int64_t c = 0; c < p.shape.V && gate == GateKind::kBilinear; ++c) {
      EXPECT_EQ(x.at("dgv")[40 * p.shape.V + c], 0.0);
    }
  }
}

/// Documents at any token, some one token long; one of them 8 times as large as its neighbours.
TEST(LinearAttention, PackedDocumentsEqualDocumentsAlone) {
  const std::vector<int64_t> cuts{0, 1, 2, 17, 63, 64, 65, 100, 128, 190};
  for (GateKind gate : kGates) {
    SCOPED_TRACE(to_string(gate));
    AttentionProblem p = random_problem({1, cuts.back(), 2, 16, 12, gate}, 7);
    const auto grow = [&](std::vector<double>& x, int64_t first, int64_t last) {
      const int64_t row = static_cast<int64_t>(x.size()) / p.shape.T;
      for (int64_t i = first * row; i < last * row; ++i) x[i] *= 8;
    };
    for (auto member : {&AttentionProblem::q, &AttentionProblem::k, &AttentionProblem::v, &AttentionProblem::dout}) {
      grow(p.*member, cuts[3], cuts[4]);
    }
    p.starts.resize(static_cast<size_t>(p.shape.T));
    for (size_t i = 1; i + 1 < cuts.size(); ++i) p.starts[cuts[i]] = 1;
    AttentionResult alone;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      AttentionProblem document = take_tokens(p, cuts[i], cuts[i + 1]);
      document.starts.clear();
      if (i > 0) document.h0.assign(document.h0.size(), 0.0);
      if (i + 2 < cuts.size()) document.dht.assign(document.dht.size(), 0.0);
      const AttentionResult part = token_reference(document);
      for (const auto& [name, x] : part) {
        if (name == "dh0" ? i == 0 : name == "ht" ? i + 2 == cuts.size() : true) {
          alone[name].insert(alone[name].end(), x.begin(), x.end());
        }
      }
    }
    for (DType dtype : kDTypes) {
      SCOPED_TRACE(to_string(dtype));
      expect_close(p, alone, run_operator(p, dtype), dtype, cuts);
    }
  }
}

TEST(LinearAttention, BitsDoNotDependOnThreads) {
  const int threads = omp_get_max_threads();
  for (GateKind gate : kGates) {
    const AttentionProblem p = random_problem({2, 200, 3, 17, 24, gate}, 8);
    omp_set_num_threads(1);
    const AttentionResult one = run_operator(p, DType::kFloat32);
    for (int n : {2, 3, 5}) {
      omp_set_num_threads(n);
      EXPECT_EQ(run_operator(p, DType::kFloat32), one) << to_string(gate) << " on " << n << " threads";
    }
    omp_set_num_threads(threads);
  }
}

TEST(LinearAttention, StateAndItsGradientAtAnyToken) {
  for (GateKind gate : kGates) {
    const AttentionProblem p = random_problem({2, 150, 2, 9, 20, gate}, 9);
    for (int64_t t : {0, 1, 63, 64, 65, 128, 149, 150}) {
      SCOPED_TRACE(fmt::format("{} token {}", to_string(gate), t));
      const AttentionProblem before = take_tokens(p, 0, t), after = take_tokens(p, t, 150);
      const AttentionResult ref{{"h", token_reference(before).at("ht")}, {"dh", token_reference(after).at("dh0")}};
      for (DType dtype : kDTypes) expect_close(p, ref, run_states_at(p, dtype, t), dtype);
    }
  }
}

TEST(LinearAttention, EndsThatNobodyWantsAreLeftOut) {
  for (GateKind gate : kGates) {
    for (int64_t T : {0, 1, 64, 150}) {
      SCOPED_TRACE(fmt::format("{} T {}", to_string(gate), T));
      expect_same_without_ends(random_problem({2, T, 2, 8, 24, gate}, 18), DType::kFloat64);
    }
  }
}

TEST(LinearAttention, NanStaysNan) {
  AttentionProblem p = random_problem({1, 130, 2, 8, 8, GateKind::kVector}, 10);
  p.gk[p.shape.H * p.shape.K * 70] = std::numeric_limits<double>::quiet_NaN();
  const AttentionResult x = run_operator(p, DType::kFloat32);
  EXPECT_TRUE(std::isnan(x.at("ht")[0]));
  EXPECT_TRUE(std::isnan(x.at("o")[p.shape.H * p.shape.V * 129]));
  EXPECT_FALSE(std::isnan(x.at("ht")[p.shape.K * p.shape.V])) << "another head";
}

TEST(LinearAttention, SpansFollowFromHeadDimensionsGateAndDtype) {
  const auto span = [](int64_t K, int64_t V, GateKind gate, DType dtype = DType::kBFloat16) {
    AttentionShape s{1, 5, 1, K, V, gate};
    choose_spans(s, dtype);
    EXPECT_EQ(s.walk, s.span);
    return s.span;
  };
  EXPECT_EQ(span(256, 512, GateKind::kVector), kLongSpan);
  EXPECT_EQ(span(256, 512, GateKind::kScalar), kLongSpan);
  EXPECT_EQ(span(256, 512, GateKind::kFixed), kChunk) << "dq needs a walk with 512 channels on the other side";
  EXPECT_EQ(span(128, 256, GateKind::kFixed), kLongSpan);
  EXPECT_EQ(span(256, 192, GateKind::kVector), kChunk) << "256 on the other side needs 128 of one's own";
  EXPECT_EQ(span(64, 64, GateKind::kNone), kLongSpan);
  EXPECT_EQ(span(64, 64, GateKind::kBilinear), kChunk);
  EXPECT_EQ(span(64, 80, GateKind::kVector), kChunk);
  EXPECT_EQ(span(64, 64, GateKind::kVector, DType::kFloat32), kChunk);

  const auto filled = [](int64_t B, int64_t H, int64_t K, int64_t V, GateKind gate) {
    AttentionShape s{B, 5, H, K, V, gate};
    choose_spans(s, DType::kBFloat16);
    EXPECT_EQ(s.span, s.walk == kLongSpan ? kLongSpan : kLongerSpan);
    return s.walk;
  };
  constexpr int64_t kTwoSpans = 2 * kLongerSpan;
  EXPECT_EQ(filled(8, 16, 128, 128, GateKind::kFixed), kTwoSpans);
  EXPECT_EQ(filled(7, 16, 128, 128, GateKind::kFixed), kLongerSpan);
  EXPECT_EQ(filled(4, 16, 128, 128, GateKind::kFixed), kLongerSpan);
  EXPECT_EQ(filled(3, 16, 128, 128, GateKind::kFixed), kLongSpan);
  EXPECT_EQ(filled(8, 4, 128, 512, GateKind::kVector), kTwoSpans) << "values in four blocks";
  EXPECT_EQ(filled(4, 16, 64, 64, GateKind::kVector), kLongerSpan);
  EXPECT_EQ(filled(4, 16, 128, 128, GateKind::kVector), kTwoSpans) << "one block a multiprocessor";
  EXPECT_EQ(filled(4, 4, 256, 512, GateKind::kVector), kTwoSpans) << "one block a multiprocessor";
  EXPECT_EQ(filled(3, 4, 256, 512, GateKind::kVector), kLongSpan);

  // An A100 gives a block 163 KiB.
  for (GateKind gate : {GateKind::kFixed, GateKind::kVector}) {
    EXPECT_TRUE(walks_take({1, 5, 1, 128, 128, gate}, 163 << 10));
    EXPECT_FALSE(walks_take({1, 5, 1, 256, 128, gate}, 163 << 10));
    EXPECT_TRUE(walks_take({1, 5, 1, 256, 128, gate}, 227 << 10));
  }

  AttentionShape s{2, kLongSpan + 1, 3, 64, 64, GateKind::kVector, kLongSpan};
  EXPECT_EQ(s.span_states(), (Shape{2, 3, 3, 64, 64}));
  const int64_t chunks = 2 * 3 * 17;
  EXPECT_EQ(AttentionWork::of(s).bytes, 2 * chunks * (3 * 64 * 64 + 2 * 64) + 4 * chunks * 64 * 64);
  s.K = s.V = 256;
  EXPECT_TRUE(walks_share(s));
  EXPECT_EQ(AttentionWork::of(s).bytes, 2 * chunks * (2 * 64 * 64 + 2 * 64 * 256 + 2 * 256) + 4 * chunks * 256 * 256)
      << "what rounding left of scores, too";
  s.K = s.V = 128;
  EXPECT_TRUE(walks_fuse(s));
  EXPECT_EQ(AttentionWork::of(s).bytes, 4 * chunks * 128 * 128) << "states of chunks alone";
  s.gate = GateKind::kScalar, s.walk = kLongSpan;
  const int64_t anchors = 2 * 3 * 2 * 5;  // of two walks, four segments each
  EXPECT_EQ(AttentionWork::of(s).bytes, anchors * (2 * 128 * 128 + 4 * 8) + 128 + 3 * 4 * chunks * 64);
  s.walk = 2 * kLongSpan;
  EXPECT_EQ(AttentionWork::of(s).bytes, 2 * 3 * 9 * (2 * 128 * 128 + 4 * 8) + 64 + 3 * 4 * chunks * 64);
  s.V = 256;
  EXPECT_EQ(AttentionWork::of(s).bytes, 4 * chunks * 128 * 256) << "every chunk's";
  s.gate = GateKind::kFixed;
  EXPECT_EQ(AttentionWork::of(s).bytes, 0);
  s.span = kChunk;
  EXPECT_EQ(AttentionWork::of(s).bytes, 0);
}

TEST(LinearAttention, GradientsAreMadeOfPartsThatFillADevice) {
  using Part = std::pair<int64_t, int64_t>;  // batches, walks
  const auto parts = [](int64_t B, int64_t T, int64_t H, int64_t K, int64_t V) {
    AttentionShape s{B, T, H, K, V, GateKind::kVector};
    choose_spans(s, DType::kBFloat16);
    const AttentionParts of = AttentionParts::of(s);
    return Part(of.batches, of.walks);
  };
  EXPECT_EQ(parts(32, 2048, 4, 256, 512), Part(8, 1)) << "128 blocks: one on a multiprocessor";
  EXPECT_EQ(parts(16, 2048, 4, 256, 512), Part(8, 1));
  EXPECT_EQ(parts(4, 8192, 4, 256, 512), Part(4, 2));
  EXPECT_EQ(parts(1, 32768, 4, 256, 512), Part(1, 8));
  EXPECT_EQ(parts(32, 2048, 16, 128, 128), Part(16, 1)) << "256 blocks: on every multiprocessor two, one by one";
  EXPECT_EQ(parts(1, 32768, 16, 128, 128), Part(1, 16));
  EXPECT_EQ(parts(1, 65536, 16, 64, 64), Part(1, 32)) << "two blocks on a multiprocessor";
  EXPECT_EQ(parts(1, 31 * kLongSpan, 16, 128, 128), Part(1, 31)) << "not one large and one small";
  EXPECT_EQ(parts(1, 33 * kLongSpan, 16, 128, 128), Part(1, 17));
  EXPECT_EQ(parts(3, 0, 16, 128, 128), Part(3, 0));
  EXPECT_EQ(parts(5000, 4096, 1, 64, 64), Part(556, 1)) << "of at least 511, as a grid may have 65,535 chunks";

  AttentionShape s{1, 1 << 20, 16, 128, 128, GateKind::kVector};
  choose_spans(s, DType::kBFloat16);
  EXPECT_EQ(AttentionWork::of(s).bytes, int64_t{2} * 2 * 16 * 16 * 16 * 128 * 128) << "states of sixteen walks' chunks";
}

TEST(LinearAttention, ADivisorDividesExactly) {
  for (uint32_t by = 1; by < 65536; by += by < 300 ? 1 : 97) {
    const Divisor divisor(by);
    for (uint32_t x = 0; x < 65536; x += x < 300 ? 1 : 31) ASSERT_EQ(divisor.divide(x), x / by) << x << " / " << by;
    for (uint32_t x = by - 1; x < 65536; x += by) ASSERT_EQ(divisor.divide(x), x / by) << x << " / " << by;
  }
}

TEST(LinearAttention, WrongTensorsAreRefused) {
  EXPECT_THROW(parse_gate_kind("vectors"), Error);
  for (GateKind gate : kGates) EXPECT_EQ(parse_gate_kind(to_string(gate)), gate);
  AttentionProblem p = random_problem({1, 8, 1, 4, 4, GateKind::kVector}, 11);
  p.shape.gate = GateKind::kNone;
  EXPECT_NO_THROW(run_operator(p, DType::kFloat64));
  AttentionInputs in;
  in.shape = p.shape;
  EXPECT_THROW(carry_forward(in, {}, {}), Error);
}

}  // namespace
}  // namespace baton::test
