// Cross-entropy over the vocabulary.
#pragma once

#include "runtime/stream.h"

namespace baton {

/// logits [N, vocab], targets int32 [N] (-1: not counted). losses double [N]: -log softmax(logits)[target], 0 where
/// not counted. Where dlogits is defined it becomes gradient_scale * (softmax - onehot), 0 where not counted; it may
/// alias logits.
void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& losses, double gradient_scale,
                   const Tensor& dlogits, const Stream& stream);

}  // namespace baton
