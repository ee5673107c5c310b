// What walks leave for the gradient of scalar gates (linear_attention_scalar.cu has the equations): products of
// outputs' parts from states with q or v, of pairs of tokens, and of states with their gradients.
//
// The walk that makes dq has the queries' sums and the states; the one that makes dv and dk has the rest, which its two
// sides share: dv's the keys' sums, as v dv, and dk's the pairs and the anchors, since its state lies in warps as that
// of dq does. Sums of rounded factors, by mma: of own channels as the diagonal of a product, of pairs as a product with
// ones, and over warps a chunk later. A pair's number is rounded once for both of its tokens, so it cancels exactly.
#pragma once

#include "kernels/cuda/linear_attention_walk_state.cuh"

namespace baton::cuda::attention {

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
struct WalkSums : WalkState<kKind, kChannels, kOwnTiles, kTiles> {
  using Base = WalkState<kKind, kChannels, kOwnTiles, kTiles>;
  using Base::a, Base::w, Base::warp, Base::lane, Base::batch, Base::head, Base::dk_side, Base::state;
  using Base::kNumThreads, Base::kOther, Base::kOwn, Base::kSides, Base::kStages, Base::kWarps, Base::WalkState;
  using Base::tables;
  using typename Base::Traits;
  static constexpr int kBlocks = 32 / kWarps;  // of 8 columns: of scores, and of outputs that are made at once
  static constexpr int kLater = kWarps, kEarlier = kLater + kWarps / 4;  // in tables.sums

  using Rounded = uint32_t[kBlocks][2];      // as they lie in registers
  using Factors = uint32_t[kBlocks / 2][4];  // as left operands
  using Products = float[kBlocks][2];        // of a row with two neighbouring columns

  __device__ __forceinline__ void prefetch_queries(const Stretch& next) const {
    const int lane = this->lane_anew();
    if constexpr (kSides == 1) {
#pragma unroll
      for (int t = lane; t < lane + kChunk; t += 32) {
        if (t < next.n) prefetch(queries(next, t));
      }
    }
  }
  /// This warp's channels of q.
  __device__ __forceinline__ const Bf16* queries(const Stretch& at, int t) const {
    return channel_at(static_cast<const Bf16*>(a.q), row_at(a, at, t), kOwn, this->own_col());
  }

  /// The anchor at which the state is when i of `count` chunks are done; -1: none.
  __device__ __forceinline__ int64_t anchor_after(int i, int count) const {
    const int at = kSides == 2 ? count - i : i;  // chunks from the walk's start
    if (at % kSegment != 0 && at != count) return -1;
    return static_cast<int64_t>(blockIdx.x) * (w.sums.segments + 1) + (at + kSegment - 1) / kSegment;
  }
  /// Starts to copy what the state meets there.
  __device__ __forceinline__ void copy_anchor(int i, int count) {
    if (!dk_side) return;
    const int64_t index = anchor_after(i, count);
    if (index < 0) return;
    const Bf16* from = anchor_state(index);
    for_anchor([&](int, int place) { copy_16_bytes(from + place, true, met_state() + place); });
  }
  /// Writes the state, or meets it.
  __device__ __forceinline__ void anchor(int i, int count) {
    const int64_t index = anchor_after(i, count);
    if (index < 0) return;
    if constexpr (kSides == 1) {
      write_state(index);
    } else if (dk_side) {
      meet_state(index);
    }
  }

  /// A chunk's sums over warps, by the last threads: the first ones make decays.
  __device__ __forceinline__ void write_sums(const Stretch& at) const {
    const int t = thread_anew() - (kNumThreads - kChunk);
    if (t < 0) return;
    const auto heads = static_cast<uint32_t>(a.H), chunks = static_cast<uint32_t>(a.N);
    const int64_t place = int64_t{(batch * heads + head) * chunks + static_cast<uint32_t>(at.chunk)} * kChunk + t;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += tables.sums[i][t];
    if constexpr (kSides == 1) {
      w.sums.queries[place] = sum;
    } else {
      float pairs = 0;
#pragma unroll
      for (int i = kLater; i < kEarlier; ++i) pairs += tables.sums[i][t];
#pragma unroll
      for (int i = kEarlier; i < kEarlier + 4; ++i) pairs -= tables.sums[i][t];
      w.sums.keys[place] = sum, w.sums.pairs[place] = pairs;
    }
  }

  /// Those of the walk's last chunk, and its last anchor.
  __device__ __forceinline__ void end_sums(const Stretch& at, int count) {
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    write_sums(at);
    anchor(count, count);
  }

  /// A state, rounded, as it lies in registers: calls f(i, place) for this lane's blocks i and i + 1.
  template <class F>
  __device__ __forceinline__ void for_anchor(F&& f) const {
    const int first = (warp * (kOther / 16) * 32 + lane) * 8;
#pragma unroll
    for (int i = 0; i < kOther / 8; i += 2) f(i, first + i * (32 * 4));
  }
  __device__ __forceinline__ Bf16* anchor_state(int64_t index) const { return w.sums.states + index * (kOwn * kOther); }
  /// Of this lane alone, so that it waits for no other.
  __device__ __forceinline__ Bf16* met_state() { return this->tile(kStages, 2 + Traits::kOutTiles); }
  __device__ __forceinline__ void write_state(int64_t index) const {
    Bf16* to = anchor_state(index);
    for_anchor([&](int i, int place) {
      const auto &low = state[i], &high = state[i + 1];
      const uint32_t x[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]),
                             pack(high[2], high[3])};
      store_16_bytes(x, to + place);
    });
  }
  __device__ __forceinline__ void meet_state(int64_t index) {
    float sum = 0;
    for_anchor([&](int i, int place) {
      const uint4 words = *reinterpret_cast<const uint4*>(met_state() + place);
      const float2 x[4] = {unpack(words.x), unpack(words.y), unpack(words.z), unpack(words.w)};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* y = state[i + j / 2] + j % 2 * 2;
        sum = fmaf(x[j].x, y[0], fmaf(x[j].y, y[1], sum));
      }
    });
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
    if (this->lane_anew() == 0) w.sums.anchors[index * kWarps + warp] = sum;
  }

  Factors factors;  // of the outputs that are made next

  /// Asks for q of tokens 8 first ..; those past the end, which meet zeros, are any.
  __device__ __forceinline__ void ask(const Stretch& at, int first) {
    if constexpr (kSides == 2) return;
    const int lane = this->lane_anew();
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const Bf16* from = queries(at, min((first + n) * 8 + lane / 4, at.n - 1)) + lane % 4 * 2;
      factors[n / 2][n % 2] = load_pair_here(from), factors[n / 2][n % 2 + 2] = load_pair_here(from + 8);
    }
  }
  static __device__ __forceinline__ void round(const float (&x)[kBlocks][4], Rounded& to) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) to[n][0] = pack(x[n][0], x[n][1]), to[n][1] = pack(x[n][2], x[n][3]);
  }

  /// Outputs' parts from the state times factors, or, of dv, times v, over this warp's channels: products of 8 tokens
  /// by 8, whose diagonals put_own takes.
  __device__ __forceinline__ void multiply_own(int stage, int first, const float (&out)[kBlocks][4],
                                               Products& products) {
    if (dk_side) return;
    const int lane = this->lane_anew();
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      if constexpr (kSides == 2) {
        const int col = this->own_col(), row = (first + n) * 8;
        const Bf16* values = this->tile(stage, 3 * kTiles + col / kTile);
        if (n % 2 == 0) load_left<Lies::kRows>(values, row, col % kTile, lane, factors[n / 2]);
      }
      float x[4] = {};
      multiply(x, factors[n / 2], transpose(pack(out[n][0], out[n][1])), transpose(pack(out[n][2], out[n][3])));
      products[n][0] = x[n % 2 * 2], products[n][1] = x[n % 2 * 2 + 1];
    }
  }
  __device__ __forceinline__ void put_own(int first, const Products& products) {
    const int lane = this->lane_anew(), row = lane / 4;
    if (dk_side || row / 2 != lane % 4) return;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const float even = products[n][0], odd = products[n][1];
      tables.sums[warp][(first + n) * 8 + row] = row % 2 == 0 ? even : odd;
    }
  }
  /// Of pairs i >= j, P_ij of dv's side times dP_ij = dout_i v_j of this one: sums over columns, those of this warp,
  /// and over its 16 rows. A token's pair with itself is in both.
  __device__ __forceinline__ void add_pairs(const Rounded& rounded) {
    if (!dk_side) return;
    constexpr uint32_t kOnes = 0x3f803f80, kAllOnes[4] = {kOnes, kOnes, kOnes, kOnes};
    const int lane = this->lane_anew(), row0 = warp % 4 * 16, col0 = warp / 4 * 8 * kBlocks;
    float later[4] = {};
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      uint32_t x[4];
      load_left<Lies::kRows>(this->tile(kStages, 0), row0, col0 + n * 8, lane, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        auto& p = reinterpret_cast<__nv_bfloat162&>(x[i]);
        p = __hmul2(p, reinterpret_cast<const __nv_bfloat162&>(rounded[n + i / 2][i % 2]));
      }
      multiply(later, x, kOnes, kOnes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float earlier[4] = {};
        multiply(earlier, kAllOnes, transpose(x[2 * i]), transpose(x[2 * i + 1]));
        float* to = tables.sums[kEarlier + warp % 4] + col0 + (n + i) * 8;
        if (lane < 4) *reinterpret_cast<float2*>(to + lane * 2) = make_float2(earlier[0], earlier[1]);
      }
    }
    float* to = tables.sums[kLater + warp / 4] + row0 + lane / 4;
    if (lane % 4 == 0) to[0] = later[0], to[8] = later[2];
  }
};

}  // namespace baton::cuda::attention
