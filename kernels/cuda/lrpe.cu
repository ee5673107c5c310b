// LRPE (TransNormerLLM, arXiv 2307.14995): y = [x cos(theta p), x sin(theta p)] and its gradients,
//
//   dx = dc cos + ds sin          dtheta += sum over tokens of p x (ds cos - dc sin),   dy = [dc, ds]
//
// x, dx [B, T, H, K] and y, dy [B, T, H, 2K] of one dtype, float32 or bfloat16; theta, dtheta [H, 1, K] float32;
// positions int64 [B, T]. Angles are formed and reduced in double; dtheta is summed in double.
//
// Threads: forward 256 a block, 8 channels a thread (1 where K is odd); backward 32 channels x 8 tokens a block, a
// block a part of the tokens (rows.cuh). Shared memory: backward 2 KiB.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/vector.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 32, kRowLanes = 8;

/// theta * position modulo 2 pi. A double cannot hold the product of a large position, so the product's rounding error
/// is kept beside it, and 2 pi is subtracted in two parts.
__device__ __forceinline__ float reduced_angle(float theta, int64_t position) {
  constexpr double kTwoPi = 6.283185307179586232, kTwoPiRest = 2.4492935982947064e-16;
  const double a = theta, p = static_cast<double>(position);
  const double product = a * p, rest = fma(a, p, -product);
  const double turns = rint(product * (1 / kTwoPi));
  return static_cast<float>(fma(-turns, kTwoPiRest, fma(-turns, kTwoPi, product)) + rest);
}

/// kStep channels of one head of one token a thread. n elements of x, H K = channels of a token.
template <class X, int kStep>
__global__ void __launch_bounds__(kThreads) forward_kernel(const X* x, const float* theta, const int64_t* positions,
                                                           int64_t n, int64_t channels, int64_t K, X* y) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kStep;
  if (first >= n) return;
  const int64_t position = positions[first / channels];
  float v[kWidth], angle[kWidth], c[kWidth], s[kWidth];
  load(x + first, kStep, kStep == kWidth, v);
  load(theta + first % channels, kStep, kStep == kWidth, angle);
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    sincosf(reduced_angle(angle[i], position), &s[i], &c[i]);
    c[i] *= v[i];
    s[i] *= v[i];
  }
  X* to = y + first / K * 2 * K + first % K;
  store(to, kStep, kStep == kWidth, c);
  store(to + K, kStep, kStep == kWidth, s);
}

template <class X>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const X* x, const float* theta, const int64_t* positions, const X* dy, int64_t tokens,
                    int64_t channels, int64_t K, X* dx, double* parts) {
  __shared__ double lanes[kRowLanes][kColumns];
  const int64_t channel = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  double sum = 0;
  if (channel < channels) {
    const float own_theta = theta[channel];
    const int64_t last = first_row(blockIdx.y + 1, gridDim.y, tokens);
    for (int64_t row = first_row(blockIdx.y, gridDim.y, tokens) + threadIdx.y; row < last; row += kRowLanes) {
      const int64_t at = row * channels + channel, pair = at / K * 2 * K + at % K, position = positions[row];
      const float value = convert_to<float>(x[at]), dc = convert_to<float>(dy[pair]),
                  ds = convert_to<float>(dy[pair + K]);
      float s, c;
      sincosf(reduced_angle(own_theta, position), &s, &c);
      dx[at] = convert_to<X>(dc * c + ds * s);
      sum += static_cast<double>(position) * static_cast<double>(value * (ds * c - dc * s));
    }
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || channel >= channels) return;
#pragma unroll
  for (int i = 1; i < kRowLanes; ++i) sum += lanes[i][threadIdx.x];
  parts[blockIdx.y * channels + channel] = sum;
}

void check_lrpe(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& y, const Stream& stream) {
  CHECK(x.shape.rank() == 4, "lrpe takes x [B, T, H, K], got {}", x.shape.str());
  const int64_t B = x.dim(0), T = x.dim(1), H = x.dim(2), K = x.dim(3);
  check_operand(x, "x", x.shape, stream);
  check_operand(theta, "theta", {H, 1, K}, DType::kFloat32, stream);
  check_operand(positions, "positions", {B, T}, DType::kInt64, stream);
  check_operand(y, "y", {B, T, H, 2 * K}, x.dtype, stream);
}

}  // namespace

void lrpe_forward(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& y,
                  const Stream& stream) {
  check_lrpe(x, theta, positions, y, stream);
  const int64_t n = x.numel(), channels = x.dim(2) * x.dim(3), K = x.dim(3);
  if (n == 0) return;
  const auto* pt = pointer<const float>(theta);
  const auto* pp = pointer<const int64_t>(positions);
  with_type(x, [&]<class X>() {
    const X* px = pointer<const X>(x);
    X* py = pointer<X>(y);
    if (K % kWidth == 0 && aligned(px, py, pt)) {
      forward_kernel<X, kWidth>
          <<<num_blocks(n, kThreads * kWidth), kThreads, 0, handle_of(stream)>>>(px, pt, pp, n, channels, K, py);
    } else {
      forward_kernel<X, 1><<<num_blocks(n, kThreads), kThreads, 0, handle_of(stream)>>>(px, pt, pp, n, channels, K, py);
    }
  });
  CUDA_CHECK(cudaGetLastError());
}

void lrpe_backward(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& dy, const Tensor& dx,
                   const Tensor& dtheta, const Stream& stream) {
  check_lrpe(x, theta, positions, dy, stream);
  check_operand(dx, "dx", x.shape, x.dtype, stream);
  check_operand(dtheta, "dtheta", theta.shape, DType::kFloat32, stream);
  const int64_t tokens = x.dim(0) * x.dim(1), channels = x.dim(2) * x.dim(3), K = x.dim(3);
  if (x.numel() == 0) return;
  const int64_t parts = num_parts(tokens, 4 * kRowLanes, channels * static_cast<int64_t>(sizeof(double)));
  auto* scratch = static_cast<double*>(workspace(stream));
  const dim3 blocks(num_blocks(channels, kColumns), static_cast<unsigned>(parts));
  with_type(x, [&]<class X>() {
    backward_kernel<<<blocks, dim3(kColumns, kRowLanes), 0, handle_of(stream)>>>(
        pointer<const X>(x), pointer<const float>(theta), pointer<const int64_t>(positions), pointer<const X>(dy),
        tokens, channels, K, pointer<X>(dx), scratch);
  });
  CUDA_CHECK(cudaGetLastError());
  add_parts(scratch, parts, channels, pointer<float>(dtheta), stream);
}

}  // namespace baton::cuda
