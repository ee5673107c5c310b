// One call's tokens cut into consecutive shards, as ranks hold them, against the whole, on a CUDA device; and a
// sequence whose states have more than 2^31 numbers.
#include <gtest/gtest.h>

#include "runtime/bfloat16.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"
#include "tests/reference/attention_runner.h"

namespace baton::test {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector,
                               GateKind::kBilinear};
constexpr Device kGpu{DeviceType::kCuda, 0};

const Stream& stream() {
  static const cuda::OwnedStream owned(0, false);
  return owned.stream();
}

/// Shard r of n is [floor(r T / n), floor((r + 1) T / n)), in units of `unit` tokens.
std::vector<int64_t> even_cuts(int64_t T, int64_t n, int64_t unit) {
  std::vector<int64_t> cuts;
  const int64_t units = (T + unit - 1) / unit;
  for (int64_t r = 0; r <= n; ++r) cuts.push_back(std::min(T, r * units / n * unit));
  return cuts;
}

AttentionProblem packed(GateKind gate, int64_t T) {
  AttentionProblem p = rounded(random_problem({2, T, 3, 16, 24, gate}, 21));
  p.starts.resize(static_cast<size_t>(2 * T));
  for (int64_t t : {90, 128, 129, 200}) p.starts[static_cast<size_t>(T + t)] = 1;  // the second row only
  return p;
}

/// Per shard and head: float32 within its tolerance, bfloat16 within 1e-2 (V3).
void expect_agree(const AttentionProblem& p, const AttentionResult& whole, DType dtype,
                  const std::vector<int64_t>& cuts) {
  const AttentionResult x = run_operator(p, dtype, cuts, stream());
  for (const auto& [name, tensor] : whole) {
    EXPECT_LE(relative_error(p, whole, x, dtype, name, cuts), dtype == DType::kFloat32 ? 1e-5 : 1e-2) << name;
  }
}

TEST(CudaLinearAttentionShards, AgreeWithOneShard) {
  for (GateKind gate : kGates) {
    const AttentionProblem p = packed(gate, 331);
    for (DType dtype : kDTypes) {
      const AttentionResult whole = run_operator(p, dtype, {}, stream());
      for (int64_t n : {2, 3, 4, 5, 8, 16, 17}) {
        SCOPED_TRACE(fmt::format("{} {} {} shards", to_string(gate), to_string(dtype), n));
        expect_agree(p, whole, dtype, even_cuts(331, n, 1));
      }
    }
  }
}

TEST(CudaLinearAttentionShards, UnevenEmptyAndTinyShards) {
  const std::vector<int64_t> cuts{0, 0, 1, 2, 65, 65, 129, 259, 260, 260};
  for (GateKind gate : kGates) {
    const AttentionProblem p = packed(gate, 260);
    const AttentionResult ref = token_reference(p);
    for (DType dtype : kDTypes) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(gate), to_string(dtype)));
      expect_agree(p, ref, dtype, cuts);
      expect_close(p, ref, run_operator(p, dtype, cuts, stream()), dtype);
    }
  }
}

TEST(CudaLinearAttentionShards, SameBitsWhereCutAtChunkBoundaries) {
  const int64_t T = 9 * kChunk + 20;
  for (GateKind gate : kGates) {
    const AttentionProblem p = packed(gate, T);
    for (DType dtype : kDTypes) {
      const AttentionResult whole = run_operator(p, dtype, {}, stream());
      for (int64_t n : {2, 3, 4, 5, 8, 16, 17}) {
        const AttentionResult cut = run_operator(p, dtype, even_cuts(T, n, kChunk), stream());
        for (const auto& [name, x] : whole) {
          EXPECT_TRUE(x == cut.at(name)) << name << " of " << to_string(gate) << " in " << n << " shards";
        }
      }
    }
  }
}

/// All tokens but the last kTail are zero, and a document starts there: its results are those of these tokens alone.
struct LongRun {
  static constexpr int64_t kTail = 3 * kChunk + 7, K = 256, V = 512;
  AttentionShape shape;
  OwnedTensor q, k, v, gk, starts, dout, o, dq, dk, dv, state, dstate, decay_k, h0, ht, dht, dh0;

  explicit LongRun(int64_t T) : shape{1, T, 1, K, V, GateKind::kFixed} {
    const DType bf16 = DType::kBFloat16, f32 = DType::kFloat32;
    for (OwnedTensor* x : {&q, &k, &dq, &dk}) *x = OwnedTensor({1, T, 1, K}, bf16, kGpu);
    for (OwnedTensor* x : {&v, &dout, &o, &dv}) *x = OwnedTensor({1, T, 1, V}, bf16, kGpu);
    for (OwnedTensor* x : {&h0, &ht, &dht, &dh0}) *x = OwnedTensor(shape.state(), f32, kGpu);
    for (OwnedTensor* x : {&state, &dstate}) *x = OwnedTensor(shape.span_states(), f32, kGpu);
    decay_k = OwnedTensor(shape.span_decays(K), f32, kGpu);
    gk = OwnedTensor({1}, f32, kGpu), starts = OwnedTensor({1, T}, DType::kUInt8, kGpu);
    fill_tail(q, K, 1), fill_tail(k, K, 2), fill_tail(v, V, 3), fill_tail(dout, V, 4);
    OwnedTensor slope({1}, f32), start({1}, DType::kUInt8);
    *slope.tensor.as<float>() = -0.01F, *start.tensor.as<uint8_t>() = 1;
    copy(slope, gk, stream());
    copy(start, starts.tensor.view({T}).rows(T - kTail, 1), stream());
    synchronize(stream());
    const AttentionInputs in{.shape = shape, .q = q, .k = k, .v = v, .gk = gk, .gv = {}, .starts = starts, .scale = 1};
    const AttentionChunks chunks{state, decay_k, {}, {}}, dchunks{dstate, {}, {}, {}};
    carry_forward(in, chunks, stream());
    advance_forward(in, chunks, h0, ht, stream());
    output_forward(in, chunks, o, stream());
    carry_backward(in, chunks, dout, dchunks, stream());
    advance_backward(in, chunks, dchunks, dht, dh0, stream());
    attention_gradients(in, chunks, dchunks, dout, {dq, dk, dv, {}, {}}, stream());
  }

  Tensor tail(const Tensor& x, int64_t dim) const { return x.view({shape.T, dim}).rows(shape.T - kTail, kTail); }
  void fill_tail(const Tensor& x, int64_t dim, int seed) const {
    OwnedTensor host({kTail, dim}, x.dtype);
    for (int64_t i = 0; i < kTail * dim; ++i) {
      host.tensor.as<BFloat16>()[i] = BFloat16(static_cast<float>((i * 7919 + seed * 104729) % 257 - 128) / 64);
    }
    copy(host, tail(x, dim), stream());
    synchronize(stream());
  }
  std::vector<uint16_t> bits(const Tensor& x, int64_t dim) const {
    OwnedTensor host({kTail, dim}, x.dtype);
    copy(tail(x, dim), host, stream());
    synchronize(stream());
    const auto* from = static_cast<const uint16_t*>(host.tensor.data);
    return {from, from + kTail * dim};
  }
};

TEST(CudaLinearAttentionShards, MoreThanTwoToThe31NumbersOfState) {
  const int64_t chunks = (int64_t{1} << 31) / (LongRun::K * LongRun::V) + 8;
  const LongRun whole(chunks * kChunk + LongRun::kTail), alone(LongRun::kTail);
  ASSERT_GT(whole.state.tensor.numel(), int64_t{1} << 31);
  const auto expect_same = [&](const OwnedTensor LongRun::*x, int64_t dim, const char* name) {
    const std::vector<uint16_t> a = whole.bits(whole.*x, dim), b = alone.bits(alone.*x, dim);
    EXPECT_TRUE(a == b) << name;
    EXPECT_NE(*std::max_element(b.begin(), b.end()), 0) << name;
  };
  expect_same(&LongRun::o, LongRun::V, "o");
  expect_same(&LongRun::dq, LongRun::K, "dq");
  expect_same(&LongRun::dk, LongRun::K, "dk");
  expect_same(&LongRun::dv, LongRun::V, "dv");
}

}  // namespace
}  // namespace baton::test
