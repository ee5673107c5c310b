// The end of a pass where the own side has no channels of decay: everything stays where the products lie.
#pragma once

#include "kernels/cuda/linear_attention_span.cuh"

namespace baton::cuda::attention {

template <Pass kPass, bool kOwn, bool kOther>
struct RowFinish : PassSpan<kPass, kOwn, kOther> {
  using Base = PassSpan<kPass, kOwn, kOther>;
  using Base::a, Base::at, Base::piece, Base::warp, Base::lane, Base::own_dim, Base::tables;
  using Base::kDx, Base::kDy, Base::kGates, Base::kGroups, Base::kKeys, Base::kNumber, Base::kSumWidth;
  using Base::score, Base::x, Base::y, Base::work, Base::own_gates, Base::PassSpan;

  __device__ __forceinline__ void finish(int col0, Accumulator& dx, Accumulator& dy, float (&anchors)[4]) {
    if constexpr (kNumber) {
      const NumberDecay& decay = this->number();
      for_pairs(piece, lane, dx, [&](int row, int, float& p, float& q) {
        const float factor = a.scale * decay.through[row];
        p *= factor, q *= factor;
      });
      for_pairs(piece, lane, dy,
                [&](int row, int, float& p, float& q) { p *= decay.after[row], q *= decay.after[row]; });
    }
    if (this->scalar()) {
      this->anchor_total += anchors[0] + anchors[1] + anchors[2] + anchors[3];
      add_row_sums(0, [&](int row, int col, int n, int i) {
        const float2 key = load_pair(y, row, col);
        return key.x * dy[n][i] + key.y * dy[n][i + 1];
      });
    }
    if constexpr (kGroups) publish_tiles();
    __syncthreads();  // scores
    if constexpr (kGroups) begin_products();
    if constexpr (kDx) this->template add_scores<Lies::kRows>(score, y, dx);
    if constexpr (kDy) this->template add_scores<Lies::kColumns>(score, x, dy);
    if constexpr (kGroups) commit_products(), wait_products();
    if (this->scalar()) {
      add_row_sums(1, [&](int row, int col, int n, int i) {
        const float2 query = load_pair(x, row, col), key = load_pair(y, row, col);
        return query.x * dx[n][i] - key.x * dy[n][i] + (query.y * dx[n][i + 1] - key.y * dy[n][i + 1]);
      });
    }
    add_own(dx, y, work);
    if constexpr (kDy) add_own(dy, x, work + kTile * kTile);
    __syncthreads();
    if (kPass == Pass::kOutput) write_tile(a, work, own_dim, at, col0, a.o);
    if (kKeys) write_tile(a, work, own_dim, at, col0, a.dq);
    if (kDy) write_tile(a, work + kTile * kTile, own_dim, at, col0, kKeys ? a.dk : a.dv);
  }

  /// tables.rows[which] += sums over this tile's channels of f, each warp its half of the columns.
  template <class F>
  __device__ __forceinline__ void add_row_sums(int which, F&& f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = piece / 2 * 16 + lane / 4 + half * 8;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) sum += f(row, piece % 2 * 32 + n * 8 + lane % 4 * 2, n, 2 * half);
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (lane % 4 == 0) tables.rows[kKeys && kNumber ? which : 0][piece % 2][row] += sum;
    }
  }

  /// to = sum + own_t * from, rounded.
  __device__ __forceinline__ void add_own(Accumulator& sum, const Bf16* from, Bf16* to) {
    for_pairs(piece, lane, sum, [&](int row, int col, float p, float q) {
      const float2 other = load_pair(from, row, col);
      const float own = tables.own[row];
      *reinterpret_cast<uint32_t*>(to + place(row, col)) = pack(fmaf(own, other.x, p), fmaf(own, other.y, q));
    });
  }

  /// rows[0]: y * dy from states; rows[1]: x * dx - y * (all of dy). One thread a token.
  __device__ __forceinline__ void finish_scalar() {
    float sum = this->anchor_total;
#pragma unroll
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (lane == 0) tables.anchor[warp] = sum;
    __syncthreads();
    const int t = threadIdx.x;
    if (t >= at.n) return;
    const NumberDecay& decay = this->number();
    float anchor = 0, result = 0;
    for (int i = 0; i < kThreads / 32; ++i) anchor += tables.anchor[i];
    const auto from_state = [&](int s) { return tables.rows[0][0][s] + tables.rows[0][1][s]; };
    for (int s = t; s < at.n && (s == t || !isinf(decay.gate[s])); ++s) {
      constexpr int kRest = kKeys && kNumber ? 1 : 0;
      result += tables.rows[kRest][0][s] + tables.rows[kRest][1][s] + from_state(s);
    }
    for (int s = 0; s < t; ++s) result += from_state(s);
    result += decay.whole() * anchor;
    a.dgk[token_offset(a, at, 1) + t * a.H] = isinf(decay.gate[t]) ? 0.0f : result;
  }
};

}  // namespace baton::cuda::attention
