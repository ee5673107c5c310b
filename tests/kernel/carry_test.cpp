// Carries of shards against the stages that they stand for, and their composition against plain loops.
#include "kernels/carry.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernel/op_test.h"

namespace baton {
namespace {

constexpr int64_t B = 2, H = 3, K = 5, V = 7;

template <class T>
class CarryTest : public ::testing::Test {};
TYPED_TEST_SUITE(CarryTest, FloatTypes);

/// Decays in (0, 1), some of them exactly 0.
template <class T>
OwnedTensor random_decays(const Shape& shape, uint64_t stream) {
  OwnedTensor x(shape, dtype_of<T>());
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const double u = random_uniform(11, stream, static_cast<uint64_t>(i));
    x.tensor.as<T>()[i] = static_cast<T>(u < 0.1 ? 0 : u);
  }
  return x;
}

/// A carry in memory of its own.
template <class T>
struct OwnedCarry {
  OwnedTensor state, decay_k, decay_v;

  static OwnedCarry random(uint64_t seed, bool bilinear) {
    return {random_tensor<T>({B, H, K, V}, seed), random_decays<T>({B, H, K}, seed),
            bilinear ? random_decays<T>({B, H, V}, seed + 100) : OwnedTensor{}};
  }
  static OwnedCarry nan(bool bilinear) {
    return {nan_tensor<T>({B, H, K, V}), nan_tensor<T>({B, H, K}), bilinear ? nan_tensor<T>({B, H, V}) : OwnedTensor{}};
  }
  OwnedCarry copied() const {
    return {clone(state), clone(decay_k), decay_v.tensor.defined() ? clone(decay_v) : OwnedTensor{}};
  }
  Carry view() const { return {state, decay_k, decay_v}; }
};

/// A shard of `num_spans` spans with the tensors that the stages read.
template <class T>
struct Spans {
  AttentionShape shape;
  OwnedTensor q, v, gk, gv, state, dstate, decay_k, decay_v;

  Spans(GateKind gate, int64_t num_spans) : shape{B, num_spans * kChunk, H, K, V, gate} {
    const DType dtype = dtype_of<T>();
    q = OwnedTensor({B, shape.T, H, K}, dtype), v = OwnedTensor({B, shape.T, H, V}, dtype);
    gk = OwnedTensor({B, shape.T, H, K}, dtype);
    state = random_tensor<T>(shape.span_states(), 1), dstate = random_tensor<T>(shape.span_states(), 2);
    decay_k = random_decays<T>(shape.span_decays(K), 3);
    if (!shape.has_decay_v()) return;
    gv = OwnedTensor({B, shape.T, H, V}, dtype);
    decay_v = random_decays<T>(shape.span_decays(V), 4);
  }
  AttentionInputs inputs() const { return {.shape = shape, .q = q, .k = q, .v = v, .gk = gk, .gv = gv, .starts = {}}; }
  AttentionChunks chunks() const { return {state, decay_k, decay_v, {}}; }
  AttentionChunks dchunks() const { return {dstate, {}, {}, {}}; }
};

TYPED_TEST(CarryTest, AShardsStateIsWhatAdvanceMakesOfZero) {
  using T = TypeParam;
  for (const GateKind gate : {GateKind::kVector, GateKind::kBilinear})
    for (const int64_t num_spans : {0, 1, 2, 5}) {
      const Spans<T> spans(gate, num_spans);
      const bool bilinear = gate == GateKind::kBilinear;
      const OwnedCarry<T> forward = OwnedCarry<T>::nan(bilinear), backward = OwnedCarry<T>::nan(bilinear);
      const OwnedTensor before = clone(spans.state);
      shard_carry_forward(spans.shape, spans.chunks(), forward.view(), {});
      shard_carry_backward(spans.shape, spans.chunks(), spans.dchunks(), backward.view(), {});
      EXPECT_TRUE(same_bytes(spans.state, before)) << "the spans' own carries were written";
      const OwnedTensor zero({B, H, K, V}, dtype_of<T>()), ht = nan_tensor<T>({B, H, K, V}),
                                                           dh0 = nan_tensor<T>({B, H, K, V});
      advance_forward(spans.inputs(), spans.chunks(), zero, ht, {});
      advance_backward(spans.inputs(), spans.chunks(), spans.dchunks(), zero, dh0, {});
      EXPECT_LE(relative_rms(forward.state, to_doubles(ht)), kTolerance<T>) << to_string(gate) << " " << num_spans;
      EXPECT_LE(relative_rms(backward.state, to_doubles(dh0)), kTolerance<T>) << to_string(gate) << " " << num_spans;
      EXPECT_TRUE(same_bytes(forward.decay_k, backward.decay_k));
    }
}

TYPED_TEST(CarryTest, AShardsDecaysAreTheProducts) {
  using T = TypeParam;
  const int64_t N = 4;
  const Spans<T> spans(GateKind::kBilinear, N);
  const OwnedCarry<T> carry = OwnedCarry<T>::nan(true);
  shard_carry_forward(spans.shape, spans.chunks(), carry.view(), {});
  for (const auto& [of_spans, whole, dim] :
       {std::tuple{spans.decay_k.tensor, carry.decay_k.tensor, K}, {spans.decay_v.tensor, carry.decay_v.tensor, V}}) {
    int64_t num_zeros = 0;
    for (int64_t i = 0; i < B * H * dim; ++i) {
      double product = 1;
      for (int64_t span = 0; span < N; ++span)
        product *= of_spans.template as<T>()[(i / dim * N + span) * dim + i % dim];
      EXPECT_NEAR(whole.template as<T>()[i], product, kTolerance<T> * product);  // 0 where one of them is
      num_zeros += product == 0;
    }
    EXPECT_GT(num_zeros, 0);
  }
}

TYPED_TEST(CarryTest, ComposesAndMayWriteInPlace) {
  using T = TypeParam;
  for (const bool bilinear : {false, true}) {
    const auto first = OwnedCarry<T>::random(1, bilinear), second = OwnedCarry<T>::random(2, bilinear);
    const OwnedCarry<T> out = OwnedCarry<T>::nan(bilinear);
    compose(first.view(), second.view(), out.view(), {});
    std::vector<double> expected;
    const auto x = to_doubles(first.state), y = to_doubles(second.state), decays = to_doubles(second.decay_k);
    for (int64_t i = 0; i < B * H * K * V; ++i) {
      const double decay_v = bilinear ? to_doubles(second.decay_v)[i / (K * V) * V + i % V] : 1;
      expected.push_back(decays[i / V] * decay_v * x[i] + y[i]);
      if (decays[i / V] * decay_v == 0) {
        EXPECT_EQ(out.state.tensor.template as<T>()[i], y[i]);
      }
    }
    EXPECT_LE(relative_rms(out.state, expected), kTolerance<T>);
    for (int64_t i = 0; i < B * H * K; ++i)
      EXPECT_EQ(out.decay_k.tensor.template as<T>()[i],
                first.decay_k.tensor.template as<T>()[i] * second.decay_k.tensor.template as<T>()[i]);
    for (const bool in_first : {true, false}) {
      const OwnedCarry<T> a = first.copied(), b = second.copied(), &to = in_first ? a : b;
      compose(a.view(), b.view(), to.view(), {});
      EXPECT_TRUE(same_bytes(to.state, out.state) && same_bytes(to.decay_k, out.decay_k));
      if (bilinear) {
        EXPECT_TRUE(same_bytes(to.decay_v, out.decay_v));
      }
    }
    const OwnedTensor state = nan_tensor<T>({B, H, K, V});
    compose({first.state, {}, {}}, second.view(), {state, {}, {}}, {});
    EXPECT_TRUE(same_bytes(state, out.state)) << "the state alone";
  }
}

TYPED_TEST(CarryTest, FixedDecaysFollowFromTokens) {
  using T = TypeParam;
  const OwnedTensor tokens = int_tensor<int64_t>({4, B}, {10, 10, 0, 0, 25, -1, 1000000, 7});
  OwnedTensor slopes({H}, dtype_of<T>());
  for (const auto& [head, slope] : {std::pair{0, 0.0}, {1, -0.01}, {2, -INFINITY}})
    slopes.tensor.as<T>()[head] = static_cast<T>(slope);
  const auto at = [&](const Tensor& log_decay, int64_t first, int64_t last) {
    const OwnedTensor decay = nan_tensor<T>({B, H, K});
    fixed_decay(log_decay, tokens, first, last, decay, {});
    std::vector<double> by_head;
    for (int64_t i = 0; i < B * H; ++i) {
      const T* row = decay.tensor.as<T>() + i * K;
      for (int64_t k = 1; k < K; ++k) EXPECT_EQ(row[k], row[0]);
      by_head.push_back(row[0]);
    }
    return by_head;
  };
  const auto expect = [](const std::vector<double>& x, const std::vector<double>& y) {
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(x[i], y[i], kTolerance<T> * y[i]) << i;
  };
  const double slope = slopes.tensor.as<T>()[1];
  expect(at(slopes, 0, 1), {1, std::exp(10 * slope), 0, 1, std::exp(10 * slope), 0});
  expect(at(slopes, 1, 2), {1, 1, 1, 1, 1, 1});                     // no tokens
  expect(at(slopes, 0, 3), {1, std::exp(35 * slope), 0, 0, 0, 0});  // a document starts in the second row
  expect(at(slopes, 2, 4), {1, std::exp(1000025 * slope), 0, 0, 0, 0});
  expect(at(slopes, 3, 4), {1, std::exp(1000000 * slope), 0, 1, std::exp(7 * slope), 0});
  expect(at({}, 0, 4), {1, 1, 1, 0, 0, 0});
}

}  // namespace
}  // namespace baton
