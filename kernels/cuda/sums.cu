// Sum of squares of n elements in double, and whether all are finite; x float32 or bfloat16.
//
// Threads: 256 a block, 8 elements at a time; the number of blocks follows from n alone, each leaves its sum in the
// workspace and one block adds these, so that the order of the sum is fixed. Shared memory: 64 bytes.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vector.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1024;

/// f(float) for all of the thread's elements.
template <class X, class F>
__device__ __forceinline__ void for_own(const X* x, int64_t n, bool is_aligned, const F& f) {
  const int64_t stride = int64_t{gridDim.x} * kThreads * kWidth;
  for (int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWidth; first < n; first += stride) {
    const int64_t count = n - first < kWidth ? n - first : kWidth;
    float v[kWidth];
    load(x + first, count, is_aligned && count == kWidth, v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) f(v[i]);  // zeros beyond the end add nothing
  }
}

template <class X>
__global__ void __launch_bounds__(kThreads) squares_kernel(const X* x, int64_t n, bool is_aligned, double* parts) {
  __shared__ double scratch[kThreads / 32];
  double sum = 0;
  for_own(x, n, is_aligned, [&](float value) { sum += static_cast<double>(value) * value; });
  sum = block_sum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

/// parts[0] = the sum of all.
__global__ void __launch_bounds__(kThreads) total_kernel(double* parts, int num_parts) {
  __shared__ double scratch[kThreads / 32];
  double sum = 0;
  for (int i = threadIdx.x; i < num_parts; i += kThreads) sum += parts[i];
  sum = block_sum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) parts[0] = sum;
}

template <class X>
__global__ void __launch_bounds__(kThreads) finite_kernel(const X* x, int64_t n, bool is_aligned, int* bad) {
  bool finite = true;
  for_own(x, n, is_aligned, [&](float value) { finite = finite && isfinite(value); });
  if (!finite) *bad = 1;
}

unsigned blocks_of(int64_t n) {
  return static_cast<unsigned>(std::min(kMaxBlocks, (n + kThreads * kWidth - 1) / (kThreads * kWidth)));
}

/// One value from the device, when all before it on the stream has run.
template <class T>
T read_back(const void* from, const Stream& stream) {
  T value{};
  copy(from, &value, sizeof(T), stream);
  cuda::synchronize(stream);
  return value;
}

}  // namespace

double sum_of_squares(const Tensor& x, const Stream& stream) {
  check_operand(x, "x", x.shape, stream);
  const int64_t n = x.numel();
  if (n == 0) return 0;
  auto* parts = static_cast<double*>(workspace(stream));
  const unsigned blocks = blocks_of(n);
  with_type(x, [&]<class X>() {
    const X* px = pointer<const X>(x);
    squares_kernel<<<blocks, kThreads, 0, handle_of(stream)>>>(px, n, aligned(px), parts);
  });
  CUDA_CHECK(cudaGetLastError());
  total_kernel<<<1, kThreads, 0, handle_of(stream)>>>(parts, static_cast<int>(blocks));
  CUDA_CHECK(cudaGetLastError());
  return read_back<double>(parts, stream);
}

void mark_not_finite(const Tensor& x, const Tensor& mark, const Stream& stream) {
  check_operand(x, "x", x.shape, stream);
  check_operand(mark, "mark", {1}, DType::kInt32, stream);
  const int64_t n = x.numel();
  if (n == 0) return;
  with_type(x, [&]<class X>() {
    const X* px = pointer<const X>(x);
    finite_kernel<<<blocks_of(n), kThreads, 0, handle_of(stream)>>>(px, n, aligned(px), pointer<int32_t>(mark));
  });
  CUDA_CHECK(cudaGetLastError());
}

bool all_finite(const Tensor& x, const Stream& stream) {
  const Tensor bad{workspace(stream), {1}, DType::kInt32, stream.device};
  set_zero(bad.data, bad.bytes(), stream);
  cuda::mark_not_finite(x, bad, stream);
  return read_back<int32_t>(bad.data, stream) == 0;
}

}  // namespace baton::cuda
