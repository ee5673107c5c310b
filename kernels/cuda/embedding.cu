// Token embedding: y_i = scale w[token_i]; dw[token_i] += scale dy_i, in the order of the tokens. tokens int32 [N];
// w [vocab, D] and y, dy [N, D] float32 or bfloat16, each its own; dw float32. A token outside the vocabulary gives a
// row of NaN, and no gradient.
//
// Forward: 256 threads a block, 8 elements of a row a thread (1 where D is odd). Backward: tokens are taken in chunks
// of 1024. A block a chunk links the chunk's tokens of each vocabulary row into a list (1024 threads, 4 KiB of shared
// memory); then a warp takes 256 columns of one vocabulary row and walks its lists, chunk after chunk. The workspace
// holds the heads [vocab, 32] of 32 chunks and their links; longer inputs take turns.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vector.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256, kChunkTokens = 1024, kChunks = 32;
constexpr int64_t kWarpColumns = 32 * kWidth;

template <class W, class Y, int kStep>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const int32_t* tokens, const W* w, float scale, int64_t n, int64_t vocab, int64_t D, Y* y) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kStep;
  if (first >= n) return;
  const int64_t token = tokens[first / D];
  float v[kWidth];
  if (token >= 0 && token < vocab) {
    load(w + token * D + first % D, kStep, kStep == kWidth, v);
  } else {
#pragma unroll
    for (float& value : v) value = NAN;
  }
#pragma unroll
  for (float& value : v) value *= scale;
  store(y + first, kStep, kStep == kWidth, v);
}

/// next[i]: the next token of the chunk that equals token i, or -1. heads[token, chunk]: the chunk's first such token.
__global__ void __launch_bounds__(kChunkTokens)
    link_kernel(const int32_t* tokens, int64_t N, int64_t vocab, int32_t* heads, int32_t* next) {
  __shared__ int32_t chunk[kChunkTokens];
  const int own = static_cast<int>(threadIdx.x);
  const int64_t base = int64_t{blockIdx.x} * kChunkTokens;
  const int32_t token = base + own < N ? tokens[base + own] : -1;
  chunk[own] = token;
  __syncthreads();
  if (token < 0 || token >= vocab) return;
  int before = -1, after = kChunkTokens;
#pragma unroll 8
  for (int i = 0; i < kChunkTokens; ++i) {
    const bool same = chunk[i] == token;
    if (same && i < own) before = i;
    if (same && i > own && i < after) after = i;
  }
  next[base + own] = after < kChunkTokens ? static_cast<int32_t>(base) + after : -1;
  if (before < 0) heads[int64_t{token} * kChunks + blockIdx.x] = static_cast<int32_t>(base) + own;
}

template <class DY>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const int32_t* heads, const int32_t* next, const DY* dy, float scale, int64_t vocab, int64_t D,
                    bool is_aligned, float* dw) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= vocab) return;
  const int32_t own_head = heads[row * kChunks + lane];
  unsigned pending = __ballot_sync(0xffffffffU, own_head >= 0);
  if (pending == 0) return;
  const int64_t column = blockIdx.y * kWarpColumns + lane * kWidth;
  const int64_t count = D - column < kWidth ? D - column : kWidth;  // may be negative: nothing to do
  const bool whole = is_aligned && count == kWidth;
  float sum[kWidth], v[kWidth];
  load(dw + row * D + column, count, whole, sum);
  for (; pending != 0; pending &= pending - 1) {
    const int chunk = __ffs(static_cast<int>(pending)) - 1;
    for (int32_t i = __shfl_sync(0xffffffffU, own_head, chunk); i >= 0; i = next[i]) {
      load(dy + i * D + column, count, whole, v);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum[k] += scale * v[k];
    }
  }
  store(dw + row * D + column, count, whole, sum);
}

void check_embedding(const Tensor& tokens, const Tensor& w, const Tensor& y, const Stream& stream) {
  CHECK(tokens.shape.rank() == 1 && w.shape.rank() == 2, "embedding takes tokens [N] and w [vocab, D], got {} and {}",
        tokens.shape.str(), w.shape.str());
  check_operand(tokens, "tokens", tokens.shape, DType::kInt32, stream);
  check_operand(w, "w", w.shape, stream);
  check_operand(y, "y", {tokens.dim(0), w.dim(1)}, stream);
}

}  // namespace

void embedding_forward(const Tensor& tokens, const Tensor& w, double scale, const Tensor& y, const Stream& stream) {
  check_embedding(tokens, w, y, stream);
  const int64_t n = y.numel(), vocab = w.dim(0), D = w.dim(1);
  if (n == 0) return;
  const auto factor = static_cast<float>(scale);
  const auto* pt = pointer<const int32_t>(tokens);
  with_type(w, [&]<class W>() {
    with_type(y, [&]<class Y>() {
      const W* pw = pointer<const W>(w);
      Y* py = pointer<Y>(y);
      if (D % kWidth == 0 && aligned(pw, py)) {
        forward_kernel<W, Y, kWidth>
            <<<num_blocks(n, kThreads * kWidth), kThreads, 0, handle_of(stream)>>>(pt, pw, factor, n, vocab, D, py);
      } else {
        forward_kernel<W, Y, 1>
            <<<num_blocks(n, kThreads), kThreads, 0, handle_of(stream)>>>(pt, pw, factor, n, vocab, D, py);
      }
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

void embedding_backward(const Tensor& tokens, const Tensor& dy, double scale, const Tensor& dw, const Stream& stream) {
  check_embedding(tokens, dw, dy, stream);
  check_operand(dw, "dw", dw.shape, DType::kFloat32, stream);
  const int64_t N = tokens.dim(0), vocab = dw.dim(0), D = dw.dim(1);
  if (N == 0 || dw.numel() == 0) return;
  constexpr int64_t kTurn = int64_t{kChunks} * kChunkTokens;
  const int64_t heads_bytes = vocab * kChunks * 4;
  CHECK(heads_bytes + kTurn * 4 <= kWorkspaceBytes, "a vocabulary of {} needs {} bytes of workspace, more than {}",
        vocab, heads_bytes + kTurn * 4, kWorkspaceBytes);
  auto* heads = static_cast<int32_t*>(workspace(stream));
  int32_t* next = heads + vocab * kChunks;
  const dim3 blocks(num_blocks(vocab, kThreads / 32), num_blocks(D, kWarpColumns));
  auto* pdw = pointer<float>(dw);
  for (int64_t first = 0; first < N; first += kTurn) {
    const int64_t count = std::min(kTurn, N - first);
    CUDA_CHECK(cudaMemsetAsync(heads, 0xff, static_cast<size_t>(heads_bytes), handle_of(stream)));  // -1 everywhere
    link_kernel<<<num_blocks(count, kChunkTokens), kChunkTokens, 0, handle_of(stream)>>>(
        pointer<const int32_t>(tokens) + first, count, vocab, heads, next);
    CUDA_CHECK(cudaGetLastError());
    with_type(dy, [&]<class DY>() {
      const DY* pdy = pointer<const DY>(dy) + first * D;
      backward_kernel<<<blocks, kThreads, 0, handle_of(stream)>>>(heads, next, pdy, static_cast<float>(scale), vocab, D,
                                                                  D % kWidth == 0 && aligned(pdy, pdw), pdw);
    });
    CUDA_CHECK(cudaGetLastError());
  }
}

}  // namespace baton::cuda
