// Matrix products: cblas on the CPU, cuBLASLt on a GPU. The only GEMM entry outside the attention operator.
#pragma once

#include "runtime/stream.h"

namespace baton {

enum class Trans { kNo, kYes };

/// c = op(a) op(b) + beta * c. op(a) [M, K], op(b) [K, N], c [M, N]; 2-D views of one floating dtype. beta is 0 or 1:
/// with 0 c is overwritten whatever it held. M, N or K may be 0 (K = 0 and beta = 0 gives zeros).
void matmul(const Tensor& a, Trans trans_a, const Tensor& b, Trans trans_b, const Tensor& c, double beta,
            const Stream& stream);

/// A linear layer in the field's layout: x [N, in], w [out, in], y [N, out].
inline void linear_forward(const Tensor& x, const Tensor& w, const Tensor& y, const Stream& stream) {
  matmul(x, Trans::kNo, w, Trans::kYes, y, 0.0, stream);
}
/// dx = dy w (beta 0) or dx += dy w (beta 1).
inline void linear_dx(const Tensor& dy, const Tensor& w, const Tensor& dx, double beta, const Stream& stream) {
  matmul(dy, Trans::kNo, w, Trans::kNo, dx, beta, stream);
}
/// dw += dy^T x: weight gradients always accumulate.
inline void linear_dw(const Tensor& dy, const Tensor& x, const Tensor& dw, const Stream& stream) {
  matmul(dy, Trans::kYes, x, Trans::kNo, dw, 1.0, stream);
}

}  // namespace baton
