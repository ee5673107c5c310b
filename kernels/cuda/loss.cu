// Cross-entropy of a row x [vocab] with its target t, e_j = exp(x_j - max x), so that no exponent is positive:
//
//   loss = log(sum e) + max x - x_t          dlogits_j = gradient_scale (e_j / sum e - [j = t])
//
// logits and dlogits [N, vocab] float32 or bfloat16, each its own; targets int32 [N]; losses double [N]. A target of -1
// is not counted; any other outside the vocabulary gives a NaN.
//
// Threads: 512 a block, a block a row, 8 logits at a time; one pass for maximum and sum together, one for the gradient.
// Shared memory: 192 bytes.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vector.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

/// The largest of some numbers, and the sum of their exponentials about it.
struct Softmax {
  float largest, sum;

  /// What exponents are taken about: all may be -inf, and -inf - -inf is no number.
  static __device__ float anchor(float largest) { return largest == -INFINITY ? 0.0F : largest; }

  __device__ void add(const Softmax& other) {
    const float both = fmaxf(largest, other.largest), about = anchor(both);
    sum = sum * expf(largest - about) + other.sum * expf(other.largest - about);
    largest = both;
  }
};

/// Maximum and sum of a row, in every thread, in a fixed order.
template <class X>
__device__ Softmax softmax_of(const X* x, int64_t vocab, bool is_aligned, Softmax* warps) {
  Softmax own{-INFINITY, 0};
  float v[kWidth];
  for (int64_t first = threadIdx.x * kWidth; first < vocab; first += kThreads * kWidth) {
    const int64_t count = vocab - first < kWidth ? vocab - first : kWidth;
    load(x + first, count, is_aligned && count == kWidth, v);
    Softmax step{-INFINITY, 0};
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      if (i < count) step.largest = fmaxf(step.largest, v[i]);
    const float about = Softmax::anchor(step.largest);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      if (i < count) step.sum += expf(v[i] - about);
    own.add(step);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const Softmax other{__shfl_xor_sync(0xffffffffU, own.largest, lanes), __shfl_xor_sync(0xffffffffU, own.sum, lanes)};
    own.add(other);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  own = warps[0];
  for (int i = 1; i < kWarps; ++i) own.add(warps[i]);
  return own;
}

template <class X, class DX>
__global__ void __launch_bounds__(kThreads) loss_kernel(const X* logits, const int32_t* targets, int64_t vocab,
                                                        bool is_aligned, double scale, double* losses, DX* dlogits) {
  __shared__ Softmax warps[kWarps];
  const int64_t row = blockIdx.x;
  const X* x = logits + row * vocab;
  const int64_t target = targets[row];
  float factor = 0, at_target = 0, target_gradient = 0;
  Softmax all{0, 1};
  if (target == -1) {
    if (threadIdx.x == 0) losses[row] = 0;
  } else {
    // The target's logit is read before the barrier in softmax_of: its gradient may take its place after it.
    at_target = target >= 0 && target < vocab ? convert_to<float>(x[target]) : NAN;
    all = softmax_of(x, vocab, is_aligned, warps);
    const double sum = all.sum;
    if (threadIdx.x == 0) losses[row] = log(sum) + all.largest - at_target;
    factor = static_cast<float>(scale / sum);
    target_gradient = static_cast<float>(scale * (expf(at_target - all.largest) - sum) / sum);
  }
  if (dlogits == nullptr) return;
  float v[kWidth];
  for (int64_t first = threadIdx.x * kWidth; first < vocab; first += kThreads * kWidth) {
    const int64_t count = vocab - first < kWidth ? vocab - first : kWidth;
    const bool whole = is_aligned && count == kWidth;
    if (target == -1) {
#pragma unroll
      for (float& value : v) value = 0;
    } else {
      load(x + first, count, whole, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) v[i] = first + i == target ? target_gradient : expf(v[i] - all.largest) * factor;
    }
    store(dlogits + row * vocab + first, count, whole, v);
  }
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& losses, double gradient_scale,
                   const Tensor& dlogits, const Stream& stream) {
  CHECK(logits.shape.rank() == 2, "cross_entropy takes logits [N, vocab], got {}", logits.shape.str());
  const int64_t N = logits.dim(0), vocab = logits.dim(1);
  check_operand(logits, "logits", logits.shape, stream);
  check_operand(targets, "targets", {N}, DType::kInt32, stream);
  check_operand(losses, "losses", {N}, DType::kFloat64, stream);
  if (dlogits.defined()) check_operand(dlogits, "dlogits", logits.shape, stream);
  CHECK(dlogits.data != logits.data || dlogits.data == nullptr || dlogits.dtype == logits.dtype,
        "dlogits may alias logits in their own dtype only");
  if (N == 0) return;
  const Tensor& gradient = dlogits.defined() ? dlogits : logits;  // for its dtype
  with_type(logits, [&]<class X>() {
    with_type(gradient, [&]<class DX>() {
      const X* px = pointer<const X>(logits);
      DX* pdx = dlogits.defined() ? pointer<DX>(dlogits) : nullptr;
      loss_kernel<<<num_blocks(N, 1), kThreads, 0, handle_of(stream)>>>(px, pointer<const int32_t>(targets), vocab,
                                                                        vocab % kWidth == 0 && aligned(px, pdx),
                                                                        gradient_scale, pointer<double>(losses), pdx);
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace baton::cuda
