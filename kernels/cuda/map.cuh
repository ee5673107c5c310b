// Elementwise kernels: one operation of corresponding elements of a few arrays of n elements each.
//
// Threads: 256 a block, 8 elements each, the last ones one by one. No shared memory. Every thread reads all of its
// elements before it writes, so outputs may be inputs. Arithmetic is in V, whatever the arrays hold.
#pragma once

#include "kernels/cuda/vector.cuh"

namespace baton::cuda {

template <class T>
struct In {
  using Type = const T;
  static constexpr bool kReads = true, kWrites = false;
  const T* data;
};
template <class T>
struct Out {
  using Type = T;
  static constexpr bool kReads = false, kWrites = true;
  T* data;
};
template <class T>
struct InOut {
  using Type = T;
  static constexpr bool kReads = true, kWrites = true;
  T* data;
};

inline constexpr int kMapThreads = 256;

/// One thread's elements of one array.
template <class V, class Array>
struct Lane {
  typename Array::Type* data;
  V value[kWidth];

  __device__ __forceinline__ void read(int64_t first, int64_t count, bool whole) {
    if constexpr (Array::kReads) load(data + first, count, whole, value);
  }
  __device__ __forceinline__ void write(int64_t first, int64_t count, bool whole) {
    if constexpr (Array::kWrites) store(data + first, count, whole, value);
  }
};

template <class Op, class... Lanes>
__device__ __forceinline__ void map_lanes(int64_t first, int64_t count, bool whole, const Op& op, Lanes... lanes) {
  (lanes.read(first, count, whole), ...);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) op(lanes.value[i]...);
  (lanes.write(first, count, whole), ...);
}

template <class V, class Op, class... Arrays>
__global__ void __launch_bounds__(kMapThreads) map_kernel(int64_t n, bool is_aligned, Op op, Arrays... arrays) {
  const int64_t first = (int64_t{blockIdx.x} * kMapThreads + threadIdx.x) * kWidth;
  if (first >= n) return;
  const int64_t count = n - first < kWidth ? n - first : kWidth;
  map_lanes(first, count, is_aligned && count == kWidth, op, Lane<V, Arrays>{arrays.data, {}}...);
}

/// op(V& element of each array, in order) for all n elements.
template <class V, class Op, class... Arrays>
void map(int64_t n, const Stream& stream, const Op& op, Arrays... arrays) {
  if (n == 0) return;
  map_kernel<V><<<num_blocks(n, kMapThreads * kWidth), kMapThreads, 0, handle_of(stream)>>>(n, aligned(arrays.data...),
                                                                                            op, arrays...);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace baton::cuda
