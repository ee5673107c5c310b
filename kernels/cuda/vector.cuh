// Eight elements a thread: loads and stores of 16 bytes where they are aligned, conversions, and sums over threads.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/operand.h"

namespace baton::cuda {

/// Elements a thread takes at a time.
inline constexpr int kWidth = 8;

template <class V, class T>
__device__ __forceinline__ V convert_to(T x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return static_cast<V>(__bfloat162float(x));
  if constexpr (std::is_same_v<V, __nv_bfloat16>) return __float2bfloat16_rn(static_cast<float>(x));
  if constexpr (!std::is_same_v<T, __nv_bfloat16> && !std::is_same_v<V, __nv_bfloat16>) return static_cast<V>(x);
}

/// v = p[0 .. count), 0 beyond. whole: count is kWidth and p is aligned to 16 bytes.
template <class V, class T>
__device__ __forceinline__ void load(const T* p, int64_t count, bool whole, V (&v)[kWidth]) {
  if (whole) {
    alignas(16) T raw[kWidth];
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(raw) / 16); ++i)
      reinterpret_cast<uint4*>(raw)[i] = reinterpret_cast<const uint4*>(p)[i];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = convert_to<V>(raw[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = i < count ? convert_to<V>(p[i]) : V{0};
  }
}

/// p[0 .. count) = v.
template <class V, class T>
__device__ __forceinline__ void store(T* p, int64_t count, bool whole, const V (&v)[kWidth]) {
  if (whole) {
    alignas(16) T raw[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) raw[i] = convert_to<T>(v[i]);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(raw) / 16); ++i)
      reinterpret_cast<uint4*>(p)[i] = reinterpret_cast<const uint4*>(raw)[i];
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      if (i < count) p[i] = convert_to<T>(v[i]);
  }
}

/// The sum over a warp, the same bits in every lane.
template <class V>
__device__ __forceinline__ V warp_sum(V x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffU, x, lanes);
  return x;
}

/// The sum over a block of kThreads in a fixed order, in every thread. scratch [kThreads / 32] is free again after it.
template <int kThreads, class V>
__device__ __forceinline__ V block_sum(V x, V* scratch) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  V total = scratch[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) total += scratch[i];
  __syncthreads();
  return total;
}

}  // namespace baton::cuda
