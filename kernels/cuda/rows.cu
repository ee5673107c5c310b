// x [N, D] += bias [D] on every row; db [D] += column sums of dy [N, D]; sums of parts [P, D]. x, dy float32 or
// bfloat16, bias and db float32.
//
// Threads: column sums 32 columns x 8 rows a block, a block a part (rows.cuh); parts 32 columns x 32 parts a block.
// Shared memory: one value a thread, 1 or 8 KiB.
#include "kernels/cuda/rows.cuh"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vector.cuh"

namespace baton::cuda {
namespace {

constexpr int kColumns = 32, kRowLanes = 8, kPartLanes = 32, kThreads = 256;

template <class T>
__global__ void add_parts_kernel(const T* parts, int64_t num_parts, int64_t D, float* sum) {
  __shared__ T lanes[kPartLanes][kColumns + 1];
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  T total = 0;
  if (column < D) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < num_parts; part += kPartLanes) total += parts[part * D + column];
  }
  lanes[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  // A warp a column now: lane i takes what row lane i summed.
  total = warp_sum(lanes[threadIdx.x][threadIdx.y]);
  const int64_t own = int64_t{blockIdx.x} * kColumns + threadIdx.y;
  if (threadIdx.x == 0 && own < D) sum[own] += static_cast<float>(total);
}

template <class X>
__global__ void column_sums_kernel(const X* x, int64_t N, int64_t D, float* parts) {
  __shared__ float lanes[kRowLanes][kColumns];
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  const int64_t last = first_row(blockIdx.y + 1, gridDim.y, N);
  float total = 0;
  if (column < D) {
#pragma unroll 4
    for (int64_t row = first_row(blockIdx.y, gridDim.y, N) + threadIdx.y; row < last; row += kRowLanes)
      total += convert_to<float>(x[row * D + column]);
  }
  lanes[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || column >= D) return;
#pragma unroll
  for (int i = 1; i < kRowLanes; ++i) total += lanes[i][threadIdx.x];
  parts[blockIdx.y * D + column] = total;
}

/// kStep elements of a row a thread, which may not cross its end.
template <class X, int kStep>
__global__ void __launch_bounds__(kThreads) add_bias_kernel(X* x, const float* bias, int64_t n, int64_t D) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kStep;
  if (first >= n) return;
  float value[kWidth], add[kWidth];
  load(x + first, kStep, kStep == kWidth, value);
  load(bias + first % D, kStep, kStep == kWidth, add);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) value[i] += add[i];
  store(x + first, kStep, kStep == kWidth, value);
}

}  // namespace

template <class T>
void add_parts(const T* parts, int64_t num_parts, int64_t D, float* sum, const Stream& stream) {
  if (num_parts == 0 || D == 0) return;
  add_parts_kernel<<<num_blocks(D, kColumns), dim3(kColumns, kPartLanes), 0, handle_of(stream)>>>(parts, num_parts, D,
                                                                                                  sum);
  CUDA_CHECK(cudaGetLastError());
}
template void add_parts(const float* parts, int64_t num_parts, int64_t D, float* sum, const Stream& stream);
template void add_parts(const double* parts, int64_t num_parts, int64_t D, float* sum, const Stream& stream);

void add_bias(const Tensor& x, const Tensor& bias, const Stream& stream) {
  CHECK(x.shape.rank() == 2, "add_bias takes rows [N, D], got {}", x.shape.str());
  const int64_t D = x.dim(1), n = x.numel();
  check_operand(x, "x", x.shape, stream);
  check_operand(bias, "bias", {D}, DType::kFloat32, stream);
  if (n == 0) return;
  with_type(x, [&]<class X>() {
    X* px = pointer<X>(x);
    const auto* pb = pointer<float>(bias);
    if (D % kWidth == 0 && aligned(px, pb)) {
      add_bias_kernel<X, kWidth><<<num_blocks(n, kThreads * kWidth), kThreads, 0, handle_of(stream)>>>(px, pb, n, D);
    } else {
      add_bias_kernel<X, 1><<<num_blocks(n, kThreads), kThreads, 0, handle_of(stream)>>>(px, pb, n, D);
    }
  });
  CUDA_CHECK(cudaGetLastError());
}

void bias_gradient(const Tensor& dy, const Tensor& db, const Stream& stream) {
  CHECK(dy.shape.rank() == 2, "bias_gradient takes rows [N, D], got {}", dy.shape.str());
  const int64_t N = dy.dim(0), D = dy.dim(1);
  check_operand(dy, "dy", dy.shape, stream);
  check_operand(db, "db", {D}, DType::kFloat32, stream);
  if (dy.numel() == 0) return;
  const int64_t parts = num_parts(N, 4 * kRowLanes, D * static_cast<int64_t>(sizeof(float)));
  auto* scratch = static_cast<float*>(workspace(stream));
  const dim3 blocks(num_blocks(D, kColumns), static_cast<unsigned>(parts));
  with_type(dy, [&]<class X>() {
    column_sums_kernel<<<blocks, dim3(kColumns, kRowLanes), 0, handle_of(stream)>>>(pointer<const X>(dy), N, D,
                                                                                    scratch);
  });
  CUDA_CHECK(cudaGetLastError());
  add_parts(scratch, parts, D, pointer<float>(db), stream);
}

}  // namespace baton::cuda
