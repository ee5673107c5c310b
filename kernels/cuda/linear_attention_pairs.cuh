// Pairs of tokens i > j inside one chunk where decays have channels, on tensor cores, level by level of the tree.
//
// At level m every token is either a query (bit m of it is set) or a key, so one tile Z_m holds both: rows x * factor_m
// or y * factor_m. Scores are the products of its rows (Z_m Z_m^T) where i and j meet at m; and with M the scores and
// their mirror image, the rows of (M at level m) Z_m times factor_m are the gradients of queries and of keys. Levels 1
// to 8 need the four 16 x 16 blocks on the diagonal alone, 16 and 32 those beside it: 1.4 times a full product.
// Where decays are mild (linear_attention_decay.cuh) one level takes the place of all: x decayed from the chunk's start
// meets y grown from there.
#pragma once

#include "kernels/cuda/linear_attention_decay.cuh"

namespace baton::cuda::attention {

constexpr int kLevels = 6;

/// Writes this thread's part of Z_m, m = kM < 8.
template <int kM, bool kQueries>
__device__ __forceinline__ void write_level(const ChannelDecay& decay, const Bf16* x, const Bf16* y, Bf16* z) {
  const int row0 = threadIdx.x / 32 * kSub, c = threadIdx.x % 32 * 2;
#pragma unroll
  for (int t = 0; t < kSub; ++t) {
    float2 value = both(0);
    if ((t & kM) == 0) value = decay.after[t] * load_pair(y, row0 + t, c);
    if ((t & kM) != 0 && kQueries) value = decay.through[t] * load_pair(x, row0 + t, c);
    put_pair(z, row0 + t, c, value);
  }
}
/// The same for m >= 8, where all tokens of a warp are queries or all are keys; `outer` multiplies them.
template <bool kQueries>
__device__ __forceinline__ void write_outer_level(bool query, const ChannelDecay& decay, float2 outer, const Bf16* x,
                                                  const Bf16* y, Bf16* z) {
  const int row0 = threadIdx.x / 32 * kSub, c = threadIdx.x % 32 * 2;
  const auto write = [&](const float2(&factor)[kSub], const Bf16* from) {
#pragma unroll
    for (int t = 0; t < kSub; ++t) put_pair(z, row0 + t, c, (factor[t] * outer) * load_pair(from, row0 + t, c));
  };
  if (!query) {
    write(decay.after, y);
  } else if constexpr (kQueries) {
    write(decay.through, x);
  } else {
#pragma unroll
    for (int t = 0; t < kSub; ++t) put_pair(z, row0 + t, c, both(0));
  }
}

/// All six levels, one tile after another; climbs to the top.
__device__ __forceinline__ void write_levels(ChannelDecay& decay, const ChannelSums& sums, const Bf16* x, const Bf16* y,
                                             Bf16* levels) {
  constexpr int kSize = kTile * kTile;
  const int sub = threadIdx.x / 32;
  decay.begin();
  write_level<1, true>(decay, x, y, levels);
  decay.climb<1>();
  write_level<2, true>(decay, x, y, levels + kSize);
  decay.climb<2>();
  write_level<4, true>(decay, x, y, levels + 2 * kSize);
  decay.climb<4>();
  write_outer_level<true>(sub & 1, decay, both(1), x, y, levels + 3 * kSize);
  write_outer_level<true>(sub & 2, decay, outer_level<16>(sums), x, y, levels + 4 * kSize);
  write_outer_level<true>(sub & 4, decay, outer_level<32>(sums), x, y, levels + 5 * kSize);
}

/// A quarter of x_t . y_t, t = threadIdx.x / 4; and the whole of it.
__device__ __forceinline__ float row_product(const Bf16* x, const Bf16* y) {
  const int row = threadIdx.x / 4, col = threadIdx.x % 4 * 16;
  float sum = 0;
#pragma unroll
  for (int c = 0; c < 16; c += 2) {
    const float2 left = load_pair(x, row, col + c), right = load_pair(y, row, col + c);
    sum = fmaf(left.x, right.x, fmaf(left.y, right.y, sum));
  }
  return sum;
}
__device__ __forceinline__ void add_up_rows(float quarter, float* rows) {
  quarter += __shfl_xor_sync(0xffffffffu, quarter, 1);
  quarter += __shfl_xor_sync(0xffffffffu, quarter, 2);
  if (threadIdx.x % 4 == 0) rows[threadIdx.x / 4] = quarter;
}

/// to += x y^T, 16 x 8 from row i0 of x and row j0 of y, over a tile's channels.
__device__ __forceinline__ void add_piece(const Bf16* x, const Bf16* y, int i0, int j0, int lane, float (&to)[4]) {
#pragma unroll
  for (int k0 = 0; k0 < kTile; k0 += 32) {
    uint32_t left[4], right[4];
    load_matrices(shared_address(y + place(j0 + lane % 8, k0 + lane / 8 * 8)), right);
    load_left<Lies::kRows>(x, i0, k0, lane, left);
    multiply(to, left, right[0], right[1]);
    load_left<Lies::kRows>(x, i0, k0 + 16, lane, left);
    multiply(to, left, right[2], right[3]);
  }
}

/// Scores of a chunk, summed over tiles of channels in registers: at each level this warp has one 16 x 8 piece.
struct LevelScores {
  float sum[kLevels][4];

  __device__ __forceinline__ LevelScores() {
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[level][i] = 0;
    }
  }

  /// First query and first key of the piece.
  static __device__ __forceinline__ int query(int level, int warp) {
    return level < 4 ? warp / 2 * 16 : level == 4 ? warp / 2 * 32 + 16 : 32 + warp / 4 * 16;
  }
  static __device__ __forceinline__ int key(int level, int warp) {
    return (level < 4 ? warp / 2 * 16 : level == 4 ? warp / 2 * 32 : warp / 2 % 2 * 16) + warp % 2 * 8;
  }
  static __device__ __forceinline__ bool has(int level, int warp) { return level != 4 || warp < 4; }

  /// z: the six tiles, one after another.
  __device__ __forceinline__ void add(const Bf16* z, int warp, int lane) {
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      const Bf16* tile = z + level * kTile * kTile;
      if (has(level, warp)) add_piece(tile, tile, query(level, warp), key(level, warp), lane, sum[level]);
    }
  }

  /// scale * scores below the diagonal, zeros on and above it.
  __device__ __forceinline__ void write(float scale, int warp, int lane, Bf16* score) const {
    const int i = lane / 4, j = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float low = inner(scale, half, i ^ j, i > j, warp, 2 * half);
      const float high = inner(scale, half, i ^ (j + 1), i > j + 1, warp, 2 * half + 1);
      write_pair(score, query(0, warp) + i + half * 8, key(0, warp) + j, low, high);
#pragma unroll
      for (int level = 4; level < kLevels; ++level) {
        if (!has(level, warp)) continue;
        const int query0 = query(level, warp), key0 = key(level, warp);
        write_pair(score, query0 + i + half * 8, key0 + j, scale * sum[level][2 * half],
                   scale * sum[level][2 * half + 1]);
        write_pair(score, key0 + i, query0 + j + half * 8, 0, 0);
      }
    }
  }

 private:
  /// Of a block on the diagonal: rows of its lower half (half 1) meet the first 8 keys at m = 8, others at 4, 2, 1.
  /// What is zero has no sign, since the block and its mirror image are put together bit by bit.
  __device__ __forceinline__ float inner(float scale, int half, int bits, bool below, int warp, int index) const {
    if (half != warp % 2) return half == 1 ? scale * sum[3][index] : 0.0f;
    if (!below) return 0.0f;
    return scale * (bits & 4 ? sum[2][index] : bits & 2 ? sum[1][index] : sum[0][index]);
  }
  static __device__ __forceinline__ void write_pair(Bf16* score, int row, int col, float x, float y) {
    *reinterpret_cast<uint32_t*>(score + place(row, col)) = pack(x, y);
  }
};

/// sum = (scores and their mirror image at level 1 << kLevel) * Z, this warp's 16 x 32 part.
template <int kLevel>
__device__ __forceinline__ void multiply_level(const Bf16* score, const Bf16* z, int warp, int lane, Accumulator& sum) {
  const int rows = warp / 2, n0 = warp % 2 * 32;
  clear(sum);
#pragma unroll
  for (int step = 0; step < (kLevel == 5 ? 2 : 1); ++step) {
    uint32_t left[4], right[4];
    int block = rows;
    if constexpr (kLevel < 4) {
      uint32_t mirror[4];
      load_left<Lies::kRows>(score, rows * 16, rows * 16, lane, left);
      load_left<Lies::kColumns>(score, rows * 16, rows * 16, lane, mirror);
      const int bits = lane / 4 ^ lane % 4 * 2;  // of i ^ j, for the even one of two columns
      const uint32_t mask = (bits >> kLevel == 1 ? 0x0000ffffu : 0u) | ((bits ^ 1) >> kLevel == 1 ? 0xffff0000u : 0u);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool crosses = i == 1 || i == 2;  // rows of one half of 8, columns of the other
        left[i] = kLevel == 3 ? (crosses ? left[i] | mirror[i] : 0u) : (crosses ? 0u : (left[i] | mirror[i]) & mask);
      }
    } else {
      block = kLevel == 4 ? rows ^ 1 : (rows / 2 ^ 1) * 2 + step;
      if (block < rows) {
        load_left<Lies::kRows>(score, rows * 16, block * 16, lane, left);
      } else {
        load_left<Lies::kColumns>(score, rows * 16, block * 16, lane, left);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      load_right<Lies::kRows>(z, block * 16, n0 + n * 8, lane, right);
      multiply(sum[n], left, right[0], right[1]);
      multiply(sum[n + 1], left, right[2], right[3]);
    }
  }
}

}  // namespace baton::cuda::attention
