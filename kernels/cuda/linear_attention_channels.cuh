// The end of a pass where the own side has channels of decay: products go through shared memory to the thread of their
// channel, which has 16 tokens of it, and there the levels and the gate gradient are done.
#pragma once

#include "kernels/cuda/linear_attention_span.cuh"

namespace baton::cuda::attention {

template <Pass kPass, bool kOwn, bool kOther>
struct ChannelFinish : PassSpan<kPass, kOwn, kOther> {
  using Base = PassSpan<kPass, kOwn, kOther>;
  using Base::a, Base::at, Base::piece, Base::warp, Base::lane, Base::channel, Base::own_dim, Base::tables;
  using Base::kDx, Base::kDy, Base::kGates, Base::kGroups, Base::kKeys, Base::kNumber, Base::kSpan, Base::kSplit;
  using Base::kSumWidth;
  using Base::score, Base::score_rest, Base::x, Base::y, Base::work, Base::own_gates, Base::PassSpan;

  struct Climb {
    Bf16* z;
    float *dx_state, *dy_state, *sums;
    float2 dx[kSub], dy[kSub];  // dy without what comes from the state
  };

  __device__ __forceinline__ void write_sums(Accumulator& sum, float* to) {
    for_pairs(piece, lane, sum, [&](int row, int col, float p, float q) {
      *reinterpret_cast<float2*>(to + row * kSumWidth + col) = make_float2(p, q);
    });
  }
  __device__ __forceinline__ float2& sum_at(float* sums, int t) const {
    return *reinterpret_cast<float2*>(sums + (warp * kSub + t) * kSumWidth + channel);
  }

  template <int kM>
  __device__ __forceinline__ void inner_level(ChannelDecay& decay, Climb& climb) {
    write_level<kM, kDy>(decay, x, y, climb.z);
    multiply_level_to<kM == 1 ? 0 : kM == 2 ? 1 : 2>(climb);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const float2 sum = sum_at(climb.sums, t);
      if (t & kM) {
        if constexpr (kDx) climb.dx[t] = fma(decay.through[t], sum, climb.dx[t]);
      } else if constexpr (kDy) {
        climb.dy[t] = fma(decay.after[t], sum, climb.dy[t]);
      }
    }
    decay.template climb<kM>();
  }
  template <int kLevel>
  __device__ __forceinline__ void outer_step(const ChannelDecay& decay, float2 outer, Climb& climb) {
    const bool query = warp & (1 << (kLevel - 3));
    write_outer_level<kDy>(query, decay, outer, x, y, climb.z);
    multiply_level_to<kLevel>(climb);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const float2 sum = outer * sum_at(climb.sums, t);
      if (query) {
        if constexpr (kDx) climb.dx[t] = fma(decay.through[t], sum, climb.dx[t]);
      } else if constexpr (kDy) {
        climb.dy[t] = fma(decay.after[t], sum, climb.dy[t]);
      }
    }
  }
  template <int kLevel>
  __device__ __forceinline__ void multiply_level_to(Climb& climb) {
    Accumulator sum;
    __syncthreads();
    multiply_level<kLevel>(score, climb.z, piece, lane, sum);
    write_sums(sum, climb.sums);
    __syncthreads();
  }

  __device__ __forceinline__ void finish(int col0, Accumulator& dx, Accumulator& dy, float (&anchors)[4]) {
    Climb climb;
    climb.z = work;
    climb.dx_state = reinterpret_cast<float*>(work + kTile * kTile);
    climb.dy_state = climb.dx_state + kChunk * kSumWidth;
    climb.sums = climb.dy_state + kChunk * kSumWidth;
    if constexpr (kGates) write_anchors(anchors, climb.sums);
    ChannelDecay decay;
    const uint32_t forgets = this->read_decay(col0, decay);
    tables.own_sums[warp][lane] = decay.total();
    __syncthreads();
    if constexpr (kGates) add_up_anchors(climb.sums);
    const OuterDecay outer(tables.own_sums);
    if (__all_sync(0xffffffffu, __syncthreads_and(outer.mild()))) {  // lest the branch count as one of single threads
      meet_at_once(decay, outer, dx, dy, climb);
      finish_thread<true>(col0, decay, outer, forgets, climb);
    } else {
      climb_levels(decay, outer, dx, dy, climb);
      finish_thread<false>(col0, decay, outer, forgets, climb);
    }
    __syncthreads();
    if (kPass == Pass::kOutput) write_tile(a, y, own_dim, at, col0, a.o);
    if (kKeys) write_tile(a, x, own_dim, at, col0, a.dq);
    if (kDy) write_tile(a, y, own_dim, at, col0, kKeys ? a.dk : a.dv);
  }

  /// Level by level; then what came from the state to dx. Leaves factors of the whole chunk in decay.after, as
  /// meet_at_once.
  __device__ __forceinline__ void climb_levels(ChannelDecay& decay, const OuterDecay& outer, Accumulator& dx,
                                               Accumulator& dy, Climb& climb) {
    // Anew, lest addresses be made before the branch to here, for nothing.
    warp = thread_anew() / 32, lane = thread_anew() % 32, channel = 2 * lane;
    piece = warp % 4 * 2 + warp / 4;
    if constexpr (kDx) write_sums(dx, climb.dx_state);
    if constexpr (kDy) write_sums(dy, climb.dy_state);
#pragma unroll
    for (int t = 0; t < kSub; ++t) climb.dx[t] = climb.dy[t] = both(0);
    decay.begin();
    inner_level<1>(decay, climb), inner_level<2>(decay, climb), inner_level<4>(decay, climb);
    outer_step<3>(decay, both(1), climb);
    outer_step<4>(decay, outer_level<16>(tables.own_sums), climb);
    outer_step<5>(decay, outer_level<32>(tables.own_sums), climb);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      decay.through[t] *= outer.through, decay.after[t] *= outer.after;
      if constexpr (kDx) {
        climb.dx[t] = fma((kOther ? 1.0f : a.scale) * decay.through[t], sum_at(climb.dx_state, t), climb.dx[t]);
      }
    }
  }

  /// What products take of x: one bfloat16, or two.
  __device__ __forceinline__ void put_kept(Bf16* upper, Bf16* rest, int row, float2 x) const {
    put_pair(upper, row, channel, x);
    if constexpr (kSplit) put_pair(rest, row, channel, x - rounded(x));
  }
  /// sum += score z, or its transpose z, of all that is kept.
  template <Lies kScore>
  __device__ __forceinline__ void add_kept(const Bf16* z, const Bf16* z_rest, Accumulator& sum) const {
    this->template add_scores<kScore>(score, z, sum);
    if constexpr (kSplit) {
      this->template add_scores<kScore>(score_rest(), z, sum);
      this->template add_scores<kScore>(score, z_rest, sum);
    }
  }

  /// All pairs at the chunk's start, since decays are mild: y as grown from there. Leaves what it grew by in decay.sum.
  __device__ __forceinline__ void meet_at_once(ChannelDecay& decay, const OuterDecay& outer, Accumulator& dx,
                                               Accumulator& dy, Climb& climb) {
    constexpr int kSize = kTile * kTile;
    Bf16 *grown_y = climb.z, *grown_y_rest = score_rest() + kSize;
    Bf16 *decayed_x = reinterpret_cast<Bf16*>(climb.sums), *decayed_x_rest = decayed_x + kSize;
    static_assert(2 * kTileBytes <= kChunk * kSumWidth * sizeof(float));
    float2 log = outer.log_through;
    float2(&inverse)[kSub] = decay.sum;
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int row = warp * kSub + t;
      log += decay.sum[t];  // of the token alone yet
      decay.through[t] = exp2_of(log), inverse[t] = exp2_of(-log);
      if constexpr (kDx) put_kept(grown_y, grown_y_rest, row, inverse[t] * load_pair(y, row, channel));
      if constexpr (kDy) put_kept(decayed_x, decayed_x_rest, row, decay.through[t] * load_pair(x, row, channel));
    }
    if constexpr (kGroups) publish_tiles();
    __syncthreads();
    Accumulator pairs;
    clear(pairs);
    if constexpr (kDx) {
      for_pairs(piece, lane, dx,
                [&](int, int, float& p, float& q) { p *= kOther ? 1.0f : a.scale, q *= kOther ? 1.0f : a.scale; });
    }
    if constexpr (kGroups) begin_products();
    if constexpr (kDx) add_kept<Lies::kRows>(grown_y, grown_y_rest, dx);
    if constexpr (kDy) add_kept<Lies::kColumns>(decayed_x, decayed_x_rest, pairs);
    if constexpr (kGroups) commit_products(), wait_products();
    if constexpr (kDx) write_sums(dx, climb.dx_state);
    if constexpr (kDy) {
      __syncthreads();  // decayed_x and the rests are read no more
      write_sums(dy, climb.dy_state);
      write_sums(pairs, climb.sums);
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      if constexpr (kDx) climb.dx[t] = decay.through[t] * sum_at(climb.dx_state, t);
      if constexpr (kDy) climb.dy[t] = inverse[t] * sum_at(climb.sums, t);
      decay.after[t] = inverse[t] * outer.whole;
    }
  }

  /// Adds what came from the state to dy, leaves the results, rounded, in place of x and y, and makes the gate
  /// gradient.
  template <bool kMild>
  __device__ __forceinline__ void finish_thread(int col0, const ChannelDecay& decay, const OuterDecay& outer,
                                                uint32_t forgets, Climb& climb) {
    float2 gate[kSub], flow[kSub];  // x * dx - y * dy, of which a gate's gradient is a sum over later tokens
    float2 before = both(0);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int row = warp * kSub + t;
      const float2 own = both(tables.own[row]), key = load_pair(y, row, channel);
      if constexpr (kGates) {
        const float2 query = load_pair(x, row, channel), from_state = decay.after[t] * sum_at(climb.dy_state, t);
        if constexpr (kMild && !kSplit) {  // as products took them, so that pairs of two later tokens cancel
          const float2 through = decay.through[t], inverse = decay.sum[t];
          flow[t] = inverse * rounded(through * query) * climb.dx[t] - through * rounded(inverse * key) * climb.dy[t];
        } else {
          flow[t] = query * climb.dx[t] - key * climb.dy[t];
        }
        gate[t] = before;
        before = fma(key, from_state, before);
        if constexpr (kKeys) put_pair(x, row, channel, fma(own, key, climb.dx[t]));
        put_pair(y, row, channel, fma(own, query, climb.dy[t] + from_state));
      } else {
        put_pair(y, row, channel, fma(own, key, climb.dx[t]));
      }
    }
    if constexpr (kGates) write_gate_gradient<kMild>(col0, outer, forgets, before, gate, flow, climb);
  }

  /// What a warp's tokens hand to the others of a channel; in place of z, which is read no more.
  struct Scan {
    ChannelSums before,
        after;  // of y * (dy from states), all its tokens; of x * dx - y * dy, up to the first forgetting
    uint32_t forgets[kNumSubs][kPairs];
  };
  static_assert(sizeof(Scan) <= kTileBytes);

  /// gate: sums of y * (dy from states) over the thread's tokens before t; `before`: over all of them. Nothing forgets
  /// where decays are mild.
  template <bool kMild>
  __device__ __forceinline__ void write_gate_gradient(int col0, const OuterDecay& outer, uint32_t forgets,
                                                      float2 before, float2 (&gate)[kSub], const float2 (&flow)[kSub],
                                                      const Climb& climb) {
    const uint32_t forgets_x = forgets & ((1u << kSub) - 1), forgets_y = forgets >> kSub;
    float2 after = both(0);
#pragma unroll
    for (int t = kSub - 1; t >= 0; --t) {
      after += flow[t];
      gate[t] += after;
      if (!kMild && forgets_x >> t & 1) after.x = 0;
      if (!kMild && forgets_y >> t & 1) after.y = 0;
    }
    Scan& scan = *reinterpret_cast<Scan*>(climb.z);
    scan.before[warp][lane] = before, scan.after[warp][lane] = after;
    if constexpr (!kMild) scan.forgets[warp][lane] = forgets;
    __syncthreads();
    float2 from_left = outer.whole * *reinterpret_cast<const float2*>(tables.anchor + channel), from_right = both(0);
#pragma unroll
    for (int other = 0; other < kNumSubs; ++other) {
      if (other < warp) from_left += scan.before[other][lane];
    }
#pragma unroll
    for (int other = kNumSubs - 1; other > 0; --other) {
      if (other <= warp) continue;
      if constexpr (!kMild) {
        const uint32_t its = scan.forgets[other][lane];
        if (its & ((1u << kSub) - 1)) from_right.x = 0;
        if (its >> kSub) from_right.y = 0;
      }
      from_right += scan.after[other][lane];
    }
    if (col0 + channel >= own_dim) return;
    float* to = channel_at(kKeys ? a.dgk : a.dgv, row_at(a, at, warp * kSub), own_dim, col0 + channel);
    if constexpr (kMild) from_left += from_right;
    // Nothing from the right where a later token forgets; exactly 0 where the token itself does.
    const auto value = [](float own, float right, uint32_t bits, int t) {
      if constexpr (kMild) return own;
      return bits >> t & 1 ? 0.0f : own + (bits >> t >> 1 != 0 ? 0.0f : right);
    };
#pragma unroll
    for (int t = 0; t < kSub; ++t, to += a.H * own_dim) {
      if (warp * kSub + t >= at.n) break;
      const float2 own = gate[t] + from_left;
      *reinterpret_cast<float2*>(to) =
          make_float2(value(own.x, from_right.x, forgets_x, t), value(own.y, from_right.y, forgets_y, t));
    }
  }

  /// Sums over the threads that loaded a row (keys) or a column (values) of the states: parts first, then all. Of
  /// spans, a thread's anchors are parts of its own channel's.
  __device__ __forceinline__ void write_anchors(float (&anchors)[4], float* parts) {
    if constexpr (kSpan) {
      parts[warp * kTile + channel] = anchors[0] + anchors[2],
                           parts[warp * kTile + channel + 1] = anchors[1] + anchors[3];
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
