// Row norms: RMSNorm (x * rsqrt(mean x^2 + eps) * w), the same without weight (SimpleRMSNorm), and LayerNorm.
#pragma once

#include "runtime/stream.h"

namespace baton {

enum class NormKind { kRms, kSimpleRms, kLayer };

const char* to_string(NormKind kind);  // "rmsnorm", "simple_rmsnorm", "layernorm"
NormKind parse_norm_kind(const std::string& word);

/// x, y [N, D]; w [D] (kRms, kLayer), b [D] (kLayer), else undefined. stats [N, 2] in the dtype of x, kept for the
/// backward: mean (0 but for kLayer) and reciprocal deviation of each row. y may alias x. Row sums run in double.
void norm_forward(NormKind kind, const Tensor& x, const Tensor& w, const Tensor& b, double eps, const Tensor& y,
                  const Tensor& stats, const Stream& stream);

/// dx = gradient (beta 0) or dx += gradient (beta 1); dw [D] and db [D] accumulate, deterministically.
void norm_backward(NormKind kind, const Tensor& x, const Tensor& w, const Tensor& stats, const Tensor& dy,
                   const Tensor& dx, double beta, const Tensor& dw, const Tensor& db, const Stream& stream);

}  // namespace baton
