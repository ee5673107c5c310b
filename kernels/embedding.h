// Token embedding and linearised relative positional encoding (LRPE).
#pragma once

#include "runtime/stream.h"

namespace baton {

/// y [N, D] = scale * w[token]; tokens int32 [N], w [vocab, D].
void embedding_forward(const Tensor& tokens, const Tensor& w, double scale, const Tensor& y, const Stream& stream);
/// dw[token] += scale * dy, in the order of the tokens.
void embedding_backward(const Tensor& tokens, const Tensor& dy, double scale, const Tensor& dw, const Stream& stream);

/// LRPE of TransNormerLLM (arXiv 2307.14995): y = [x cos(theta p), x sin(theta p)]; x [B, T, H, K], y [B, T, H, 2K],
/// theta [H, 1, K], positions int64 [B, T] in the document. Angles are formed and reduced in double.
void lrpe_forward(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& y, const Stream& stream);
/// dx overwritten (may not alias), dtheta accumulates.
void lrpe_backward(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& dy, const Tensor& dx,
                   const Tensor& dtheta, const Stream& stream);

}  // namespace baton
