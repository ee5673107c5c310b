// Decays inside a chunk on the GPU, by the same tree as on the CPU (kernels/cpu/linear_attention_decay.h): the decay
// over an aligned block of 1, 2, 4, .. 64 tokens is exp of the plain sum of its gates, so no exponent is positive and
// none is a difference; tokens i > j meet at the one level m = highest bit of i ^ j, where their decay is
// factor_m(i) * factor_m(j): from the middle through i, and from after j to the middle. Where the chunk's own decay is
// mild, tokens meet at one place instead of six (OuterDecay::mild), with the one exception to this rule.
#pragma once

#include <math_constants.h>

#include "kernels/cuda/linear_attention_tile.cuh"

namespace baton::cuda::attention {

constexpr int kSub = 8;  // tokens that a thread holds of two neighbouring channels; a warp has all 64
constexpr int kNumSubs = kChunk / kSub;
constexpr int kPairs = kTile / 2;
constexpr float kLog2E = 1.44269504f;

using ChannelSums = float2[kNumSubs][kPairs];

__device__ __forceinline__ float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ float2 operator-(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
__device__ __forceinline__ float2 operator*(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }
__device__ __forceinline__ float2 operator*(float a, float2 b) { return make_float2(a * b.x, a * b.y); }
__device__ __forceinline__ float2 operator-(float2 a) { return make_float2(-a.x, -a.y); }
__device__ __forceinline__ float2& operator+=(float2& a, float2 b) { return a = a + b; }
__device__ __forceinline__ float2& operator*=(float2& a, float2 b) { return a = a * b; }
__device__ __forceinline__ float2 fma(float2 a, float2 b, float2 c) {
  return make_float2(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y));
}
/// 2^x. Channels' gates are multiplied by log2(e) when read.
__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float2 exp2_of(float2 x) { return make_float2(exp2_of(x.x), exp2_of(x.y)); }
__device__ __forceinline__ float2 both(float a) { return make_float2(a, a); }

/// Log gate of token t of the stretch, not past its end.
__device__ __forceinline__ float start_or(const Arguments& a, const Stretch& at, int t, float gate) {
  return a.starts != nullptr && a.starts[at.batch * a.T + at.first + t] != 0 ? -CUDART_INF_F : gate;
}

/// A bit for every document start among kTokens tokens from `first` in [B, T], of which n are there.
template <int kTokens>
__device__ __forceinline__ uint32_t starts_of(const Arguments& a, int64_t first, int n) {
  uint32_t starts = 0;
  if (a.starts == nullptr) return starts;
  for (int t = 0; t < kTokens && t < n; ++t) starts |= static_cast<uint32_t>(a.starts[first + t] != 0) << t;
  return starts;
}

/// Two channels, 8 tokens, in registers; level by level. Thread i has tokens 8 (i / 32) .. of channels 2 (i % 32) + {0,
/// 1} of a tile.
struct ChannelDecay {
  float2 sum[kSub];                   // gates, then sums over blocks of 2, 4, 8 tokens
  float2 through[kSub], after[kSub];  // inside the block: from its start through t; from after t to its end

  static __device__ __forceinline__ const float* source(const Arguments& a, const float* gates, int64_t dim,
                                                        const Stretch& at, int channel) {
    return channel_at(gates, row_at(a, at, threadIdx.x / 32 * kSub), dim, channel);
  }
  /// Asks for what `read` will read of the tile whose first channel is col0.
  static __device__ __forceinline__ void prefetch(const Arguments& a, const float* gates, int64_t dim,
                                                  const Stretch& at, int col0) {
    const int token = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 16;  // a quarter of a row, two sectors
    if (threadIdx.x / 32 * kSub + token >= at.n || col0 + column >= dim) return;
    const float* from = source(a, gates, dim, at, col0 + column) + token * static_cast<int>(a.H * dim);
    attention::prefetch(from), attention::prefetch(from + 8);
  }

  /// Gates of channels `channel` and the next of `dim`, both even; 0 outside the stretch and the tensor. Returns a bit
  /// for every -inf, those of the second channel kSub bits higher.
  __device__ __forceinline__ uint32_t read(const Arguments& a, const float* gates, int64_t dim, const Stretch& at,
                                           int channel) {
    const int first = threadIdx.x / 32 * kSub;
    const float* from = source(a, gates, dim, at, channel);
    const int64_t stride = a.H * dim;
    float2 gate[kSub];
#pragma unroll
    for (int t = 0; t < kSub; ++t, from += stride) {
      gate[t] = both(0);
      if (first + t < at.n && channel < dim) gate[t] = *reinterpret_cast<const float2*>(from);
    }
    return take(a, at, gate);
  }
  /// The same of gates that are there; 0 outside.
  __device__ __forceinline__ uint32_t take(const Arguments& a, const Stretch& at, const float2 (&gate)[kSub]) {
    const int first = threadIdx.x / 32 * kSub;
    const uint32_t starts = starts_of<kSub>(a, at.batch * a.T + at.first + first, at.n - first);
    uint32_t forgets = starts | starts << kSub;
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      sum[t] = kLog2E * (starts >> t & 1 ? both(-CUDART_INF_F) : gate[t]);
      if (gate[t].x == -CUDART_INF_F) forgets |= 1u << t;
      if (gate[t].y == -CUDART_INF_F) forgets |= 1u << (kSub + t);
    }
    return forgets;
  }
  /// Sum over all 8 tokens; before the climb.
  __device__ __forceinline__ float2 total() const {
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int t = 0; t < kSub; ++t) through[t] = exp2_of(sum[t]), after[t] = both(1);
  }
  /// From blocks of kM tokens to blocks of twice as many.
  template <int kM>
  __device__ __forceinline__ void climb() {
#pragma unroll
    for (int block = 0; block < kSub / (2 * kM); ++block) {
      const float2 left = exp2_of(sum[2 * block]), right = exp2_of(sum[2 * block + 1]);
#pragma unroll
      for (int t = 2 * kM * block; t < 2 * kM * block + kM; ++t) after[t] *= right, through[t + kM] *= left;
      sum[block] = sum[2 * block] + sum[2 * block + 1];
    }
  }
  __device__ __forceinline__ void climb_all() {
    begin();
    climb<1>(), climb<2>(), climb<4>();
  }
};

/// A chunk's decay so slow that all its pairs can meet at one place, its start or its end: one factor of each pair is
/// then at most 1 / whole, which is far inside the range of bfloat16, and only the other is a decay.
__device__ __forceinline__ bool is_mild(float whole) { return whole >= 0x1p-60f; }

/// Beyond a thread's tokens, from the sums of all eight of its channels: what its factors are multiplied by.
struct OuterDecay {
  float2 through, after;  // over the whole chunk
  float2 whole;           // decay of the chunk
  float2 log_through;     // logarithm of the first, base 2

  __device__ __forceinline__ explicit OuterDecay(const ChannelSums& sums) {
    const int sub = threadIdx.x / 32, pair = threadIdx.x % 32;
    float2 left = both(0), right = both(0);
#pragma unroll
    for (int i = 0; i < kNumSubs; ++i) {
      if (i < sub) left += sums[i][pair];
      if (i > sub) right += sums[i][pair];
    }
    log_through = left;
    through = exp2_of(left), after = exp2_of(right);
    whole = exp2_of((left + sums[sub][pair]) + right);
  }

  __device__ __forceinline__ bool mild() const { return is_mild(whole.x) && is_mild(whole.y); }
};

/// The same at the levels m = 16 and 32, from the halves of a block of 2 m that meet there: the left one's keys go to
/// its end, queries come from the start of the right one. At m = 8 it is 1.
template <int kM>
__device__ __forceinline__ float2 outer_level(const ChannelSums& sums) {
  constexpr int kHalf = kM / kSub;  // sub-chunks
  const int sub = threadIdx.x / 32, start = sub & ~(kHalf - 1);
  float2 sum = both(0);
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const int other = start + i;
    if (sub & kHalf ? other < sub : other > sub) sum += sums[other][threadIdx.x % 32];
  }
  return exp2_of(sum);
}

/// One number a token (none, fixed, scalar): tables in shared memory.
struct NumberDecay {
  static constexpr int kLevels = 6;
  float factor[kLevels][kChunk];         // factor_m(t) of level m = 1 << l
  float through[kChunk], after[kChunk];  // over the whole chunk
  float grown[kChunk];                   // after / whole, where that is mild
  float gate[kChunk];

  /// Log gates of this thread's token, if it has one, and of the one at its place in the chunk's other half.
  static __device__ __forceinline__ float2 read(const Arguments& a, const Stretch& at) {
    const int thread = thread_anew();
    const auto gate = [&](int t) {
      if (thread >= kChunk || t >= at.n) return 0.0f;
      float g = 0;
      if (a.gate == Gate::kFixed) g = a.gk[at.head];
      if (a.gate == Gate::kScalar) g = a.gk[token_offset(a, at, 1) + t * static_cast<int>(a.H)];
      return start_or(a, at, t, g);
    };
    return make_float2(gate(thread), gate(thread ^ 32));
  }
  /// By all threads, from what they have read; ends with a barrier.
  __device__ __forceinline__ void make(float2 gates) {
    const int t = thread_anew();
    if (t < kChunk) {
      gate[t] = gates.x;
      float sum = gates.x, other = gates.y;  // of the aligned block of m tokens that has t; of that in the other half
      float thr = __expf(sum), aft = 1;
#pragma unroll
      for (int level = 0; level < kLevels - 1; ++level) {
        const int m = 1 << level;
        factor[level][t] = t & m ? thr : aft;
        const float sibling = __shfl_xor_sync(0xffffffffu, sum, m);
        (t & m ? thr : aft) *= __expf(sibling);
        sum += sibling, other += __shfl_xor_sync(0xffffffffu, other, m);
      }
      factor[kLevels - 1][t] = t & 32 ? thr : aft;
      (t & 32 ? thr : aft) *= __expf(other);
      through[t] = thr, after[t] = aft;
      grown[t] = aft * __expf(-(sum + other));
    }
    __syncthreads();
  }
  __device__ __forceinline__ float whole() const { return through[kChunk - 1]; }
  /// Decay between tokens i > j.
  __device__ __forceinline__ float between(int i, int j) const {
    const int level = 31 - __clz(i ^ j);
    return factor[level][i] * factor[level][j];
  }
  __device__ __forceinline__ bool mild() const { return is_mild(whole()); }
};

}  // namespace baton::cuda::attention
