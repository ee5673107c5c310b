// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101).
#pragma once

#include "runtime/stream.h"

namespace baton {

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double gradient_scale = 1;  // clipping
  int64_t step = 1;           // 1 at the first step: bias correction
};

/// w -= lr (m^ / (sqrt(v^) + eps) + weight_decay w). All four of one shape and floating dtype; w, m, v updated.
void adamw(const AdamWStep& step, const Tensor& w, const Tensor& gradient, const Tensor& m, const Tensor& v,
           const Stream& stream);

}  // namespace baton
