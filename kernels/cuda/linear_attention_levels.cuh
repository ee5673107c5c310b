// Scores and decayed tiles of any chunk, level by level (linear_attention_pairs.cuh), by 256 threads.
#pragma once

#include "kernels/cuda/linear_attention_pairs.cuh"

namespace baton::cuda::attention {

/// y becomes k~ of a tile; `decay` has climbed.
__device__ __forceinline__ void decay_keys(const ChannelDecay& decay, const OuterDecay& outer, Bf16* y) {
  const int warp = threadIdx.x / 32, channel = threadIdx.x % 32 * 2;
#pragma unroll
  for (int t = 0; t < kSub; ++t) {
    const int row = warp * kSub + t;
    put_pair(y, row, channel, (decay.after[t] * outer.after) * load_pair(y, row, channel));
  }
}

/// x becomes q~ of a tile; `decay` has climbed.
__device__ __forceinline__ void decay_queries(float scale, const ChannelDecay& decay, const OuterDecay& outer,
                                              Bf16* x) {
  const int warp = threadIdx.x / 32, channel = threadIdx.x % 32 * 2;
#pragma unroll
  for (int t = 0; t < kSub; ++t) {
    const int row = warp * kSub + t;
    put_pair(x, row, channel, scale * (decay.through[t] * outer.through) * load_pair(x, row, channel));
  }
}

struct LevelChunk {
  LevelScores scores;
  float own = 0;  // a quarter of a token's product with itself

  /// x and y become q~ and k~ of a tile. Before, after and in it a barrier of all threads; `levels` are six tiles.
  template <class Barrier>
  __device__ __forceinline__ void add_tile(float scale, ChannelDecay& decay, const ChannelSums& sums, Bf16* x, Bf16* y,
                                           Bf16* levels, Barrier&& barrier) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const OuterDecay outer(sums);
    own += row_product(x, y);
    write_levels(decay, sums, x, y, levels);
    barrier();
    scores.add(levels, warp, lane);
    decay_queries(scale, decay, outer, x);
    decay_keys(decay, outer, y);
  }

  /// The scores, after a barrier; `rows` has room for a number a token. Another barrier must follow.
  template <class Barrier>
  __device__ __forceinline__ void write(float scale, float* rows, Bf16* score, Barrier&& barrier) const {
    scores.write(scale, threadIdx.x / 32, threadIdx.x % 32, score);
    add_up_rows(scale * own, rows);
    barrier();
    if (threadIdx.x < kChunk) score[place(threadIdx.x, threadIdx.x)] = __float2bfloat16(rows[threadIdx.x]);
  }
};

}  // namespace baton::cuda::attention
