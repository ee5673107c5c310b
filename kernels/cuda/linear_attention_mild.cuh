// Scores of chunks whose decays are mild (linear_attention_decay.cuh): all pairs meet at the chunk's start, so scores
// are one product, of q~ and of keys grown from there, whose numbers keep 16 bits.
//
// Eight warps make a tile: a thread has 8 tokens of two neighbouring channels.
#pragma once

#include "kernels/cuda/linear_attention_pairs.cuh"

namespace baton::cuda::attention {

/// Starts to copy rows of kTiles tiles side by side, `from` this thread's first piece; rows from n on are zero.
template <int kNumThreads, int kTiles>
__device__ __forceinline__ void copy_rows(const Bf16* from, int64_t stride, int n, Bf16* tiles) {
  Bf16* to = tiles + place(piece_row(), piece_col());
  for_pieces<kNumThreads>([&](int i, int row) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      copy_16_bytes(from + j * kTile, row < n, to + i * kPieceStep<kNumThreads> + j * kTile * kTile);
    }
    from += kNumThreads / 8 * stride;
  });
}

/// A thread's log gates of a tile, base e.
struct MildGates {
  float2 gate[kSub];

  /// from: of the thread's first token and channel; n tokens there are.
  __device__ __forceinline__ void load(const float* from, int64_t stride, int n) {
#pragma unroll
    for (int t = 0; t < kSub; ++t, from += stride) gate[t] = t < n ? *reinterpret_cast<const float2*>(from) : both(0);
  }
  /// A bit for every token at which a document starts.
  __device__ __forceinline__ void forget(uint32_t starts) {
    if (starts == 0) return;
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      if (starts >> t & 1) gate[t] = both(-CUDART_INF_F);
    }
  }
  /// Base 2.
  __device__ __forceinline__ float2 total() const {
    return kLog2E * (((gate[0] + gate[1]) + (gate[2] + gate[3])) + ((gate[4] + gate[5]) + (gate[6] + gate[7])));
  }
};

/// What a thread's tokens need of the others, base 2.
struct MildDecay {
  float2 before;  // logarithm, of what comes before them
  float2 whole;   // of the chunk

  __device__ __forceinline__ MildDecay(const ChannelSums& sums, int warp) {
    float2 all = both(0);
#pragma unroll
    for (int i = 0; i < kNumSubs; ++i) {
      if (i == warp) before = all;
      all += sums[i][threadIdx.x % 32];
    }
    whole = exp2_of(all);
  }
  __device__ __forceinline__ bool mild() const { return is_mild(whole.x) && is_mild(whole.y); }
};

/// A thread's pairs in a bfloat16 tile: of its first token at `first`, in bytes; the next ones' differ in their row and
/// in bits 4 to 6.
struct PairsOfTile {
  int first;

  __device__ __forceinline__ explicit PairsOfTile(int warp)
      : first(warp * (kSub * kTile * 2) + (threadIdx.x % 32 / 4 * 16 + threadIdx.x % 4 * 4)) {}
  __device__ __forceinline__ uint32_t& at(Bf16* tile, int t) const {
    return *reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(tile) + (first ^ t << 4) + t * (kTile * 2));
  }
};

/// y becomes k~ of a tile.
__device__ __forceinline__ void decay_keys_mildly(const MildGates& gates, const MildDecay& decay, int warp, Bf16* y) {
  const PairsOfTile pairs(warp);
  float2 log = decay.before;
#pragma unroll
  for (int t = 0; t < kSub; ++t) {
    log = fma(both(kLog2E), gates.gate[t], log);
    const float2 key = decay.whole * (exp2_of(make_float2(-log.x, -log.y)) * unpack(pairs.at(y, t)));
    pairs.at(y, t) = pack(key.x, key.y);
  }
}

/// x becomes q~ of a tile.
__device__ __forceinline__ void decay_queries_mildly(float scale, const MildGates& gates, const MildDecay& decay,
                                                     int warp, Bf16* x) {
  const PairsOfTile pairs(warp);
  float2 log = decay.before;
#pragma unroll
  for (int t = 0; t < kSub; ++t) {
    log = fma(both(kLog2E), gates.gate[t], log);
    const float2 query = (scale * exp2_of(log)) * unpack(pairs.at(x, t));
    pairs.at(x, t) = pack(query.x, query.y);
  }
}

/// What meets at the chunk's start, of a tile: numbers of 16 bits in two bfloat16 each, q~ (x has its upper half) and
/// keys grown from there.
struct MildOperands {
  Bf16 *x, *x_rest, *key, *key_rest;
};

/// x and y become q~ and k~ of a tile. warp: whose 8 tokens a thread has.
__device__ __forceinline__ void decay_mildly(float scale, const MildGates& gates, const MildDecay& decay, int warp,
                                             const MildOperands& to, Bf16* y) {
  const PairsOfTile pairs(warp);
  const auto put = [&](Bf16* upper, Bf16* rest, int t, float2 a) {
    const uint32_t bits = pack(a.x, a.y);
    const float2 left = a - unpack(bits);
    pairs.at(upper, t) = bits, pairs.at(rest, t) = pack(left.x, left.y);
  };
  float2 log = decay.before;
#pragma unroll
  for (int t = 0; t < kSub; ++t) {
    log = fma(both(kLog2E), gates.gate[t], log);
    put(to.x, to.x_rest, t, (scale * exp2_of(log)) * unpack(pairs.at(to.x, t)));
    const float2 key = exp2_of(make_float2(-log.x, -log.y)) * unpack(pairs.at(y, t));
    put(to.key, to.key_rest, t, key);
    pairs.at(y, t) = pack(decay.whole.x * key.x, decay.whole.y * key.y);
  }
}

/// Scores of kPieces pieces of 16 x 8 side by side.
template <int kPieces>
struct MildScores {
  float sum[kPieces][4] = {};

  /// Over a tile's channels, from row i0 of queries and j0 of keys.
  __device__ __forceinline__ void add(const MildOperands& of, int i0, int j0, int lane) {
#pragma unroll
    for (int k0 = 0; k0 < kTile; k0 += 16) {
      uint32_t left[4], left_rest[4], right[4], right_rest[4];
      load_left<Lies::kRows>(of.x, i0, k0, lane, left);
      load_left<Lies::kRows>(of.x_rest, i0, k0, lane, left_rest);
      load_right<Lies::kColumns>(of.key, k0, j0 / 16 * 16, lane, right);
      load_right<Lies::kColumns>(of.key_rest, k0, j0 / 16 * 16, lane, right_rest);
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        const bool second = kPieces == 2 ? n == 1 : j0 % 16 != 0;
        const uint32_t b0 = second ? right[2] : right[0], b1 = second ? right[3] : right[1];
        multiply(sum[n], left, b0, b1);
        multiply(sum[n], left_rest, b0, b1);
        multiply(sum[n], left, second ? right_rest[2] : right_rest[0], second ? right_rest[3] : right_rest[1]);
      }
    }
  }
  /// Rounds them into a tile, zeros above the diagonal, and begins anew.
  __device__ __forceinline__ void write(int i0, int j0, int lane, Bf16* score) {
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = i0 + lane / 4 + half * 8, j = j0 + n * 8 + lane % 4 * 2;
        *reinterpret_cast<uint32_t*>(score + place(i, j)) =
            pack(i < j ? 0.0f : sum[n][2 * half], i < j + 1 ? 0.0f : sum[n][2 * half + 1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0;
    }
  }
};

}  // namespace baton::cuda::attention
