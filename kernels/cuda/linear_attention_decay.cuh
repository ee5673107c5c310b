// Decays inside a chunk on the GPU, by the same tree as on the CPU (kernels/cpu/linear_attention_decay.h): the decay
// over an aligned block of 1, 2, 4, .. 64 tokens is exp of the plain sum of its gates, so no exponent is positive and
// none is a difference; tokens i > j meet at the one level m = highest bit of i ^ j, where their decay is
// factor_m(i) * factor_m(j): from the middle through i, and from after j to the middle.
#pragma once

#include <math_constants.h>

#include "kernels/cuda/linear_attention_tile.cuh"

namespace baton::cuda::attention {

constexpr int kSub = 16;  // tokens a thread holds of one channel
constexpr int kNumSubs = kChunk / kSub;

/// Log gate of token t of the stretch, not past its end.
__device__ __forceinline__ float start_or(const Arguments& a, const Stretch& at, int t, float gate) {
  return a.starts != nullptr && a.starts[at.batch * a.T + at.first + t] != 0 ? -CUDART_INF_F : gate;
}

/// One channel, 16 tokens, in registers; level by level. Thread i has tokens 16 (i / 64) .. of channel i % 64.
struct ChannelDecay {
  float sum[kSub];                   // gates, then sums over blocks of 2, 4, 8, 16 tokens
  float through[kSub], after[kSub];  // inside the block: from its start through t; from after t to its end

  /// Gates of channel `channel` of `dim`; 0 outside the stretch and the tensor. Returns a bit for every -inf.
  __device__ __forceinline__ uint32_t read(const Arguments& a, const float* gates, int64_t dim, const Stretch& at,
                                           int channel) {
    const int sub = threadIdx.x / kTile;
    const float* from = gates + token_offset(a, at, dim) + channel;
    uint32_t forgets = 0;
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int token = sub * kSub + t;
      sum[t] = token < at.n && channel < dim ? from[token * a.H * dim] : 0;
    }
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int token = sub * kSub + t;
      if (token < at.n) sum[t] = start_or(a, at, token, sum[t]);
      if (isinf(sum[t])) forgets |= 1u << t;
    }
    return forgets;
  }

  /// Sum over all 16 tokens; before the climb.
  __device__ __forceinline__ float total() const {
    float s[kSub];
#pragma unroll
    for (int t = 0; t < kSub; ++t) s[t] = sum[t];
#pragma unroll
    for (int m = 1; m < kSub; m *= 2) {
#pragma unroll
      for (int t = 0; t < kSub; t += 2 * m) s[t] += s[t + m];
    }
    return s[0];
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int t = 0; t < kSub; ++t) through[t] = __expf(sum[t]), after[t] = 1;
  }
  /// From blocks of kM tokens to blocks of twice as many.
  template <int kM>
  __device__ __forceinline__ void climb() {
#pragma unroll
    for (int block = 0; block < kSub / (2 * kM); ++block) {
      const float left = __expf(sum[2 * block]), right = __expf(sum[2 * block + 1]);
#pragma unroll
      for (int t = 2 * kM * block; t < 2 * kM * block + kM; ++t) after[t] *= right, through[t + kM] *= left;
      sum[block] = sum[2 * block] + sum[2 * block + 1];
    }
  }
  __device__ __forceinline__ void climb_all() {
    begin();
    climb<1>(), climb<2>(), climb<4>(), climb<8>();
  }
};

/// Beyond a sub-chunk, from the sums of the four sub-chunks of one channel: what its factors are multiplied by.
struct OuterDecay {
  float level_32;        // at m = 32
  float through, after;  // over the whole chunk
  float whole;           // decay of the chunk

  /// sums: [4][64], of channel threadIdx.x % 64.
  __device__ __forceinline__ explicit OuterDecay(const float* sums) {
    const int sub = threadIdx.x / kTile, c = threadIdx.x % kTile;
    const float s0 = sums[c], s1 = sums[kTile + c], s2 = sums[2 * kTile + c], s3 = sums[3 * kTile + c];
    const float left = __expf(s0 + s1), right = __expf(s2 + s3);
    level_32 = sub == 0 ? __expf(s1) : sub == 3 ? __expf(s2) : 1.0f;
    through = sub == 0 ? 1.0f : sub == 1 ? __expf(s0) : sub == 2 ? left : __expf(s2) * left;
    after = sub == 3 ? 1.0f : sub == 2 ? __expf(s3) : sub == 1 ? right : __expf(s1) * right;
    whole = __expf((s0 + s1) + (s2 + s3));
  }
};

/// One number a token (none, fixed, scalar): tables in shared memory.
struct NumberDecay {
  static constexpr int kLevels = 6;
  float factor[kLevels][kChunk];         // factor_m(t) of level m = 1 << l
  float through[kChunk], after[kChunk];  // over the whole chunk
  float gate[kChunk];

  /// By all threads; ends with a barrier.
  __device__ __forceinline__ void make(const Arguments& a, const Stretch& at) {
    const int t = threadIdx.x;
    if (t < kChunk) {
      float g = 0;
      if (t < at.n && a.gate == Gate::kFixed) g = a.gk[at.head];
      if (t < at.n && a.gate == Gate::kScalar) g = a.gk[token_offset(a, at, 1) + t * a.H];
      gate[t] = t < at.n ? start_or(a, at, t, g) : 0.0f;
    }
    __syncthreads();
    if (t < kChunk) {
      float thr = __expf(gate[t]), aft = 1;
#pragma unroll
      for (int level = 0; level < kLevels; ++level) {
        const int m = 1 << level;
        factor[level][t] = t & m ? thr : aft;
        const int sibling = (t / m ^ 1) * m;
        float sum = 0;
        for (int s = 0; s < m; ++s) sum += gate[sibling + s];
        (t & m ? thr : aft) *= __expf(sum);
      }
      through[t] = thr, after[t] = aft;
    }
    __syncthreads();
  }
  __device__ __forceinline__ float whole() const { return through[kChunk - 1]; }
  /// Decay between tokens i > j.
  __device__ __forceinline__ float between(int i, int j) const {
    const int level = 31 - __clz(i ^ j);
    return factor[level][i] * factor[level][j];
  }
};

}  // namespace baton::cuda::attention
