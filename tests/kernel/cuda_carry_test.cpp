// Carries of shards on a device against the CPU's in float64, and against the bits of the stages they stand for.
#include "kernels/carry.h"

#include "tests/kernel/cuda_test.h"

namespace baton {
namespace {

constexpr int64_t B = 2, H = 3;

OwnedTensor decays(const Shape& shape, uint64_t stream) {
  OwnedTensor x(shape, kF64);
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const double u = random_uniform(11, stream, static_cast<uint64_t>(i));
    x.tensor.as<double>()[i] = u < 0.1 ? 0 : u;
  }
  return x;
}

struct CarryOperand {
  Operand state, decay_k, decay_v;

  static CarryOperand random(int64_t K, int64_t V, uint64_t seed, bool bilinear) {
    return {random_operand({B, H, K, V}, kF32, seed),
            {decays({B, H, K}, seed), kF32},
            bilinear ? Operand(decays({B, H, V}, seed + 9), kF32) : Operand{}};
  }
  static CarryOperand nan(int64_t K, int64_t V, bool bilinear) {
    return {nan_operand({B, H, K, V}, kF32), nan_operand({B, H, K}, kF32),
            bilinear ? nan_operand({B, H, V}, kF32) : Operand{}};
  }
  Carry host() const { return {state.host, decay_k.host, decay_v.host}; }
  Carry device() const { return {state.device, decay_k.device, decay_v.device}; }
  void expect_close_to_host(const std::string& what) const {
    expect_close(state, what + " state");
    expect_close(decay_k, what + " decay_k");
    if (decay_v.device.tensor.defined()) expect_close(decay_v, what + " decay_v");
  }
};

TEST(CudaCarry, OfAShard) {
  for (const bool bilinear : {false, true})
    for (const auto& [K, V] : {std::pair<int64_t, int64_t>{5, 7}, {64, 128}})
      for (const int64_t num_spans : {0, 1, 5}) {
        AttentionShape s{B, num_spans * kChunk, H, K, V, bilinear ? GateKind::kBilinear : GateKind::kVector};
        const Operand states = random_operand(s.span_states(), kF32, 1);
        const Operand decay_k(decays(s.span_decays(K), 2), kF32);
        const Operand decay_v = bilinear ? Operand(decays(s.span_decays(V), 3), kF32) : Operand{};
        const AttentionChunks host{states.host, decay_k.host, decay_v.host, {}},
            device{states.device, decay_k.device, decay_v.device, {}};
        for (const bool reversed : {false, true}) {
          const CarryOperand carry = CarryOperand::nan(K, V, bilinear);
          if (reversed) {
            shard_carry_backward(s, host, host, carry.host(), Stream{});
            shard_carry_backward(s, device, device, carry.device(), gpu_stream());
          } else {
            shard_carry_forward(s, host, carry.host(), Stream{});
            shard_carry_forward(s, device, carry.device(), gpu_stream());
          }
          carry.expect_close_to_host(fmt::format("{} x {}, {} spans, reversed {}", K, V, num_spans, reversed));
        }
      }
}

TEST(CudaCarry, ComposesAndMayWriteInPlace) {
  for (const bool bilinear : {false, true})
    for (const auto& [K, V] : {std::pair<int64_t, int64_t>{5, 7}, {64, 128}}) {
      const CarryOperand first = CarryOperand::random(K, V, 1, bilinear),
                         second = CarryOperand::random(K, V, 2, bilinear);
      const CarryOperand out = CarryOperand::nan(K, V, bilinear);
      compose(first.host(), second.host(), out.host(), Stream{});
      compose(first.device(), second.device(), out.device(), gpu_stream());
      out.expect_close_to_host("composed");
      compose(first.device(), second.device(), second.device(), gpu_stream());
      EXPECT_TRUE(same_device_bytes(second.state.device, out.state.device) &&
                  same_device_bytes(second.decay_k.device, out.decay_k.device));
    }
}

TEST(CudaCarry, FixedDecaysFollowFromTokens) {
  const OwnedTensor tokens = int_tensor<int64_t>({4, B}, {10, 10, 0, 0, 25, -1, 1000000, 7});
  const OwnedTensor on_device = to_device(tokens);
  const Operand slopes(int_tensor<double>({H}, {0, -1, -3}), kF32);
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 1}, {1, 2}, {0, 3}, {2, 4}, {3, 4}}) {
    const Operand decay = nan_operand({B, H, 33}, kF32);
    fixed_decay(slopes.host, tokens, first, last, decay.host, Stream{});
    fixed_decay(slopes.device, on_device, first, last, decay.device, gpu_stream());
    expect_close(decay, fmt::format("shards {} to {}", first, last));
    fixed_decay({}, tokens, first, last, decay.host, Stream{});
    fixed_decay({}, on_device, first, last, decay.device, gpu_stream());
    expect_close(decay, fmt::format("shards {} to {}, no decay", first, last));
  }
}

}  // namespace
}  // namespace baton
