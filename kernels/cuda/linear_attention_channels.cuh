// The end of a pass where the own side has channels of decay: products go through shared memory to the thread of their
// channel, which has 16 tokens of it, and there the levels and the gate gradient are done.
#pragma once

#include "kernels/cuda/linear_attention_block.cuh"

namespace baton::cuda::attention {

template <Pass kPass, bool kOwn, bool kOther>
struct ChannelFinish : PassBlock<kPass, kOwn, kOther> {
  using Base = PassBlock<kPass, kOwn, kOther>;
  using Base::a, Base::at, Base::warp, Base::lane, Base::sub, Base::channel, Base::own_dim, Base::tables;
  using Base::kDx, Base::kDy, Base::kGates, Base::kKeys, Base::kNumber, Base::kSpan, Base::kSumWidth;
  using Base::score, Base::x, Base::y, Base::work, Base::own_gates, Base::PassBlock;

  struct Climb {
    Bf16* z;
    float *dx_state, *dy_state, *sums;
    float dx[kSub], dy[kSub];
  };

  __device__ __forceinline__ void write_sums(Accumulator& sum, float* to) {
    for_pairs(warp, lane, sum, [&](int row, int col, float p, float q) {
      *reinterpret_cast<float2*>(to + row * kSumWidth + col) = make_float2(p, q);
    });
  }
  __device__ __forceinline__ float& sum_at(float* sums, int t) const {
    return sums[(sub * kSub + t) * kSumWidth + channel];
  }

  template <int kM>
  __device__ __forceinline__ void inner_level(ChannelDecay& decay, Climb& climb) {
    write_level<kM, kDy>(decay, x, y, climb.z);
    multiply_level_to<kM == 1 ? 0 : kM == 2 ? 1 : kM == 4 ? 2 : 3>(climb);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const float sum = sum_at(climb.sums, t);
      if (t & kM) {
        if constexpr (kDx) climb.dx[t] = fmaf(decay.through[t], sum, climb.dx[t]);
      } else if constexpr (kDy) {
        climb.dy[t] = fmaf(decay.after[t], sum, climb.dy[t]);
      }
    }
    decay.template climb<kM>();
  }
  template <int kLevel>
  __device__ __forceinline__ void outer_level(const ChannelDecay& decay, float outer, Climb& climb) {
    const bool query = sub & (kLevel == 4 ? 1 : 2);
    write_outer_level<kDy>(query, decay, outer, x, y, climb.z);
    multiply_level_to<kLevel>(climb);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const float sum = outer * sum_at(climb.sums, t);
      if (query) {
        if constexpr (kDx) climb.dx[t] = fmaf(decay.through[t], sum, climb.dx[t]);
      } else if constexpr (kDy) {
        climb.dy[t] = fmaf(decay.after[t], sum, climb.dy[t]);
      }
    }
  }
  template <int kLevel>
  __device__ __forceinline__ void multiply_level_to(Climb& climb) {
    Accumulator sum;
    __syncthreads();
    multiply_level<kLevel>(score, climb.z, warp, lane, sum);
    write_sums(sum, climb.sums);
    __syncthreads();
  }

  __device__ __forceinline__ void finish(int col0, Accumulator& dx, Accumulator& dy, float (&anchors)[4]) {
    Climb climb;
    climb.z = work;
    climb.dx_state = reinterpret_cast<float*>(work + kTile * kTile);
    climb.dy_state = climb.dx_state + kChunk * kSumWidth;
    climb.sums = climb.dy_state + kChunk * kSumWidth;
    if constexpr (kDx) write_sums(dx, climb.dx_state);
    if constexpr (kDy) write_sums(dy, climb.dy_state);
    if constexpr (kGates) write_anchors(anchors, climb.sums);
#pragma unroll
    for (int t = 0; t < kSub; ++t) climb.dx[t] = climb.dy[t] = 0;
    ChannelDecay decay;
    const uint32_t forgets = decay.read(a, own_gates, own_dim, at, col0 + channel);
    tables.own_sums[sub * kTile + channel] = decay.total();
    __syncthreads();
    if constexpr (kGates) add_up_anchors(climb.sums);
    const OuterDecay outer(tables.own_sums);
    decay.begin();
    inner_level<1>(decay, climb), inner_level<2>(decay, climb), inner_level<4>(decay, climb);
    inner_level<8>(decay, climb);
    outer_level<4>(decay, 1.0f, climb);
    outer_level<5>(decay, outer.level_32, climb);
    finish_thread(col0, decay, outer, forgets, climb);
    __syncthreads();
    if (kPass == Pass::kOutput) write_tile(a, y, own_dim, at, col0, a.o);
    if (kKeys) write_tile(a, x, own_dim, at, col0, a.dq);
    if (kDy) write_tile(a, y, own_dim, at, col0, kKeys ? a.dk : a.dv);
  }

  /// Adds what came from states, makes the gate gradient, and leaves the results, rounded, in place of x and y.
  __device__ __forceinline__ void finish_thread(int col0, const ChannelDecay& decay, const OuterDecay& outer,
                                                uint32_t forgets, Climb& climb) {
    float gate[kSub];
    float before = 0;
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      if constexpr (kDx) {
        const float factor = (kOther ? 1.0f : a.scale) * (decay.through[t] * outer.through);
        climb.dx[t] = fmaf(factor, sum_at(climb.dx_state, t), climb.dx[t]);
      }
      if constexpr (kGates) {
        const float from_state = decay.after[t] * outer.after * sum_at(climb.dy_state, t);
        gate[t] = before;
        before = fmaf(at_place(y, sub * kSub + t, channel), from_state, before);
        sum_at(climb.dy_state, t) = from_state;
      }
    }
    if constexpr (kGates) write_gate_gradient(col0, outer, forgets, before, gate, climb);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int row = sub * kSub + t;
      const float own = tables.own[row], key = at_place(y, row, channel);
      if constexpr (kKeys) {
        const float query = at_place(x, row, channel);
        put(x, row, channel, fmaf(own, key, climb.dx[t]));
        put(y, row, channel, fmaf(own, query, climb.dy[t] + sum_at(climb.dy_state, t)));
      } else if constexpr (kDy) {
        put(y, row, channel, fmaf(own, at_place(x, row, channel), climb.dy[t] + sum_at(climb.dy_state, t)));
      } else {
        put(y, row, channel, fmaf(own, key, climb.dx[t]));
      }
    }
  }

  /// gate: sums of y * (dy from states) over the thread's tokens before t; `before`: over all of them.
  __device__ __forceinline__ void write_gate_gradient(int col0, const OuterDecay& outer, uint32_t forgets, float before,
                                                      float (&gate)[kSub], const Climb& climb) {
    float after = 0;
#pragma unroll
    for (int t = kSub - 1; t >= 0; --t) {
      const float query = at_place(x, sub * kSub + t, channel), key = at_place(y, sub * kSub + t, channel);
      after += query * climb.dx[t] - key * climb.dy[t];
      gate[t] += after;
      if (forgets >> t & 1) after = 0;
    }
    const auto& scan = tables.scan;
    tables.scan[0][sub * kTile + channel] = before;
    tables.scan[kGates ? 1 : 0][sub * kTile + channel] = after;
    tables.scan[kGates ? 2 : 0][sub * kTile + channel] = forgets != 0 ? 1.0f : 0.0f;
    __syncthreads();
    float from_left = outer.whole * tables.anchor[channel], from_right = 0;
    for (int other = 0; other < sub; ++other) from_left += scan[0][other * kTile + channel];
    for (int other = kNumSubs - 1; other > sub; --other) {
      const int place_in = other * kTile + channel;
      if (scan[kGates ? 2 : 0][place_in] != 0) from_right = 0;
      from_right += scan[kGates ? 1 : 0][place_in];
    }
    if (col0 + channel >= own_dim) return;
    float* to = (kKeys ? a.dgk : a.dgv) + token_offset(a, at, own_dim) + col0 + channel;
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const bool cut = forgets >> t >> 1 != 0, forget = forgets >> t & 1;  // cut: forgotten at a later token
      const float value = gate[t] + from_left + (cut ? 0.0f : from_right);
      if (sub * kSub + t < at.n) to[(sub * kSub + t) * a.H * own_dim] = forget ? 0.0f : value;
    }
  }

  /// Sums over the threads that loaded a row (keys) or a column (values) of the states: parts first, then all. Of
  /// spans, a thread's anchors are parts of its own channel's.
  __device__ __forceinline__ void write_anchors(float (&anchors)[4], float* parts) {
    if constexpr (kSpan) {
      parts[sub * kTile + channel] = anchors[0] + anchors[1] + anchors[2] + anchors[3];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = anchors[i];
        if constexpr (kKeys) {
#pragma unroll
          for (int m = 8; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
          if (lane % 16 == 0) parts[StateTile::row(i)] = sum;
        } else {
          sum += __shfl_xor_sync(0xffffffffu, sum, 16);
          if (lane < 16) parts[warp * kTile + StateTile::col() + i] = sum;
        }
      }
    }
  }
  __device__ __forceinline__ void add_up_anchors(const float* parts) {
    if (threadIdx.x >= kTile) return;
    float sum = 0;
    for (int i = 0; i < (kSpan ? kNumSubs : kKeys ? 1 : kThreads / 32); ++i) sum += parts[i * kTile + threadIdx.x];
    tables.anchor[threadIdx.x] = sum;
  }
};

}  // namespace baton::cuda::attention
