// Scores of chunks whose decays are mild (linear_attention_decay.cuh): all pairs meet at the chunk's start, so scores
// are one product, of q~ and of keys grown from there, whose numbers keep 16 bits.
//
#pragma once

#include "kernels/cuda/linear_attention_decay.cuh"
#include "kernels/cuda/linear_attention_products.cuh"

namespace baton::cuda::attention {

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ __forceinline__ float4 operator-(float4 a, float4 b) {
  return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}
__device__ __forceinline__ float4 operator-(float4 a) { return make_float4(-a.x, -a.y, -a.z, -a.w); }
__device__ __forceinline__ float4 operator*(float4 a, float4 b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ __forceinline__ float4 operator*(float a, float4 b) {
  return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}
__device__ __forceinline__ float4& operator+=(float4& a, float4 b) { return a = a + b; }
__device__ __forceinline__ float4 fma(float a, float4 b, float4 c) {
  return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}
__device__ __forceinline__ float4 exp2_of(float4 a) {
  return make_float4(exp2_of(a.x), exp2_of(a.y), exp2_of(a.z), exp2_of(a.w));
}
__device__ __forceinline__ float least(float4 a) { return fminf(fminf(a.x, a.y), fminf(a.z, a.w)); }
__device__ __forceinline__ float4 four(float a) { return make_float4(a, a, a, a); }
__device__ __forceinline__ float4 unpack(uint2 x) {
  const float2 low = unpack(x.x), high = unpack(x.y);
  return make_float4(low.x, low.y, high.x, high.y);
}
__device__ __forceinline__ uint2 pack(float4 a) { return make_uint2(pack(a.x, a.y), pack(a.z, a.w)); }

/// A thread makes a run of kRun tokens, 4 or 8, of four neighbouring channels of a tile; 16 threads make all 64, so
/// 1024 / kRun threads make a tile.
template <int kRun>
__device__ __forceinline__ int run_token() {
  return threadIdx.x / 16 % (kChunk / kRun) * kRun;
}
__device__ __forceinline__ int run_channel() { return threadIdx.x % 16 * 4; }

/// A run's log gates, base e.
template <int kRun>
struct MildGates {
  float4 gate[kRun];

  /// from: of the run's first token and channel; n tokens there are.
  __device__ __forceinline__ void load(const float* from, int64_t stride, int n) {
#pragma unroll
    for (int t = 0; t < kRun; ++t, from += stride) gate[t] = load_or_zeros(from, t < n);
  }
  /// A bit for every token at which a document starts.
  __device__ __forceinline__ void forget(uint32_t starts) {
    if (starts == 0) return;
    asm volatile("");  // a branch, since there are few
#pragma unroll
    for (int t = 0; t < kRun; ++t) {
      if (starts >> t & 1) gate[t] = four(-CUDART_INF_F);
    }
  }
  /// Base 2.
  __device__ __forceinline__ float4 total() const {
    float4 sum = (gate[0] + gate[1]) + (gate[2] + gate[3]);
    if constexpr (kRun == 8) sum += (gate[4] + gate[5]) + (gate[6] + gate[7]);
    return kLog2E * sum;
  }
};

/// Sum over eight tokens of the thread's channels, base 2.
__device__ __forceinline__ float4 mild_sum(const ChannelSums& sums, int i) {
  return reinterpret_cast<const float4*>(sums[i])[threadIdx.x % 16];
}

/// Logarithm, base 2, of the decay from the chunk's start to a run.
template <int kRun>
struct MildDecay {
  float4 before;  // of its eight tokens, then of all

  /// Puts the sum over eight tokens into `sums`, and returns it.
  __device__ __forceinline__ float4 begin(const MildGates<kRun>& gates, ChannelSums& sums) {
    float4 sum = gates.total();
    before = four(0);
    if constexpr (kRun < kSub) {
      const auto other = [](float x) { return __shfl_xor_sync(0xffffffffu, x, 16); };
      const float4 others = make_float4(other(sum.x), other(sum.y), other(sum.z), other(sum.w));
      if (threadIdx.x & 16) before = others;
      sum += others;
    }
    reinterpret_cast<float4*>(sums[run_token<kRun>() / kSub])[threadIdx.x % 16] = sum;
    return sum;
  }
  /// Once all threads have begun.
  __device__ __forceinline__ void end(const ChannelSums& sums) {
#pragma unroll
    for (int i = 0; i < kNumSubs - 1; ++i) {
      if (i < run_token<kRun>() / kSub) before += mild_sum(sums, i);
    }
  }
};
/// Decay of the whole chunk.
__device__ __forceinline__ float4 mild_whole(const ChannelSums& sums) {
  float4 all = four(0);
#pragma unroll
  for (int i = 0; i < kNumSubs; ++i) all += mild_sum(sums, i);
  return exp2_of(all);
}

/// A run's numbers in a bfloat16 tile: those of its first token at `first`, in bytes; the next ones' differ in their
/// row and in bits 4 to 6.
template <int kRun>
struct RunOfTile {
  int first;

  __device__ __forceinline__ RunOfTile() {
    const int row = run_token<kRun>(), channel = run_channel();
    first = row * (kTile * 2) + ((channel / 8 ^ row % 8) << 4) + channel % 8 * 2;
    asm volatile("" : "+r"(first));  // lest it be made anew for every token
  }
  __device__ __forceinline__ uint2& at(Bf16* tile, int t) const {
    return *reinterpret_cast<uint2*>(reinterpret_cast<char*>(tile) + (first ^ t << 4) + t * (kTile * 2));
  }
};

/// y becomes keys of a tile, grown from the chunk's start. Calls done(t) once the gates of token t are not needed.
template <int kRun, class F>
__device__ __forceinline__ void grow_keys(const MildGates<kRun>& gates, float4 log, Bf16* y, F&& done) {
  const RunOfTile<kRun> run;
#pragma unroll
  for (int t = 0; t < kRun; ++t) {
    log = fma(kLog2E, gates.gate[t], log);
    run.at(y, t) = pack(exp2_of(-log) * unpack(run.at(y, t)));
    done(t);
  }
}

/// x becomes q~ of a tile; the same.
template <int kRun, class F>
__device__ __forceinline__ void decay_queries_mildly(float scale, const MildGates<kRun>& gates, float4 log, Bf16* x,
                                                     F&& done) {
  const RunOfTile<kRun> run;
#pragma unroll
  for (int t = 0; t < kRun; ++t) {
    log = fma(kLog2E, gates.gate[t], log);
    run.at(x, t) = pack((scale * exp2_of(log)) * unpack(run.at(x, t)));
    done(t);
  }
}

/// What meets at the chunk's start, of a tile: q~ and keys grown from there, numbers of 16 bits in two bfloat16 each.
struct MildOperands {
  Bf16 *query, *query_rest, *key, *key_rest;
};

/// Makes these from x and y, which may be those for the upper halves. log: MildDecay::before. Calls done(run, t, key),
/// after which the gates of token t are not needed.
template <int kRun, class F>
__device__ __forceinline__ void meet_mildly(float scale, const MildGates<kRun>& gates, float4 log, Bf16* x, Bf16* y,
                                            const MildOperands& to, F&& done) {
  const RunOfTile<kRun> run;
  const auto put = [&](Bf16* upper, Bf16* rest, int t, float4 a) {
    const uint2 bits = pack(a);
    run.at(upper, t) = bits, run.at(rest, t) = pack(a - unpack(bits));
  };
  uint2 query_bits = run.at(x, 0), key_bits = run.at(y, 0);
#pragma unroll
  for (int t = 0; t < kRun; ++t) {
    log = fma(kLog2E, gates.gate[t], log);
    const float4 query = (scale * exp2_of(log)) * unpack(query_bits), key = exp2_of(-log) * unpack(key_bits);
    if (t + 1 < kRun) query_bits = run.at(x, t + 1), key_bits = run.at(y, t + 1);
    put(to.query, to.query_rest, t, query);
    put(to.key, to.key_rest, t, key);
    done(run, t, key);
  }
}

/// Scores of a chunk by eight warps: two warpgroups' halves of the keys, in each 16 queries a warp.
struct MildScores {
  float sum[4][4] = {};

  static __device__ __forceinline__ int query() { return threadIdx.x / 32 % 4 * 16; }
  static __device__ __forceinline__ int key() { return __shfl_sync(0xffffffffu, threadIdx.x / 128 % 2, 0) * 32; }

  /// Over a tile's channels; `wait_products` before the tiles change, and before `write`.
  __device__ __forceinline__ void add(const MildOperands& of, int lane) {
    begin_products();
    add_rows(sum, of.query, of.key, query(), key(), lane);
    add_rows(sum, of.query_rest, of.key, query(), key(), lane);
    add_rows(sum, of.query, of.key_rest, query(), key(), lane);
    commit_products();
  }
  /// Rounds them into a tile, zeros above the diagonal, and what that leaves into another one (or null); begins anew.
  __device__ __forceinline__ void write(int lane, Bf16* score, Bf16* rest) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = query() + lane / 4 + half * 8, j = key() + n * 8 + lane % 4 * 2;
        const float2 x = {i < j ? 0.0f : sum[n][2 * half], i < j + 1 ? 0.0f : sum[n][2 * half + 1]};
        put_pair(score, i, j, x);
        if (rest != nullptr) put_pair(rest, i, j, x - rounded(x));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] = 0;
    }
  }
};

}  // namespace baton::cuda::attention
