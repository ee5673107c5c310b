// Token embedding.
#include "kernels/embedding.h"

#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"

namespace baton {
namespace {

void check_embedding(const Tensor& tokens, const Tensor& w, const Tensor& y) {
  CHECK(tokens.shape.rank() == 1 && w.shape.rank() == 2, "embedding takes tokens [N] and w [vocab, D], got {} and {}",
        tokens.shape.str(), w.shape.str());
  check_tensor(tokens, "tokens", tokens.shape, DType::kInt32);
  check_tensor(y, "y", {tokens.dim(0), w.dim(1)}, w.dtype);
  const int32_t* p = tokens.as<int32_t>();
  for (int64_t i = 0; i < tokens.dim(0); ++i)
    CHECK(p[i] >= 0 && p[i] < w.dim(0), "token {} at position {} is not in [0, {})", p[i], i, w.dim(0));
}

}  // namespace

void embedding_forward(const Tensor& tokens, const Tensor& w, double scale, const Tensor& y, const Stream& stream) {
  BATON_ON_CUDA(stream, embedding_forward(tokens, w, scale, y, stream));
  check_embedding(tokens, w, y);
  const int64_t D = w.dim(1);
  dispatch_float(w.dtype, [&]<class T>() {
    const T *pw = w.as<T>(), factor = static_cast<T>(scale);
    for_blocks(tokens.dim(0), kRowBlock, [=, pt = tokens.as<int32_t>(), py = y.as<T>()](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const T* from = pw + pt[i] * D;
        T* to = py + i * D;
#pragma omp simd
        for (int64_t j = 0; j < D; ++j) to[j] = factor * from[j];
      }
    });
  });
}

void embedding_backward(const Tensor& tokens, const Tensor& dy, double scale, const Tensor& dw, const Stream& stream) {
  BATON_ON_CUDA(stream, embedding_backward(tokens, dy, scale, dw, stream));
  check_embedding(tokens, dw, dy);
  constexpr int64_t kColumns = 64;
  const int64_t N = tokens.dim(0), D = dw.dim(1);
  dispatch_float(dw.dtype, [&]<class T>() {
    const T *pdy = dy.as<T>(), factor = static_cast<T>(scale);
    // Threads share the columns, so that each element adds its tokens in order.
    for_blocks(D, kColumns, [=, pt = tokens.as<int32_t>(), pdw = dw.as<T>()](int64_t first, int64_t last) {
      for (int64_t i = 0; i < N; ++i) {
        const T* from = pdy + i * D;
        T* to = pdw + pt[i] * D;
#pragma omp simd
        for (int64_t j = first; j < last; ++j) to[j] += factor * from[j];
      }
    });
  });
}

}  // namespace baton
