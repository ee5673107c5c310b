// The stages behind kernels/linear_attention.h, after its checks.
#pragma once

#include "kernels/linear_attention.h"

namespace baton::attention {

template <class Real>
void carry_forward(const AttentionInputs& in, const AttentionChunks& chunks);
template <class Real>
void advance_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht);
template <class Real>
void output_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& o);
template <class Real>
void carry_backward(const AttentionInputs& in, const Tensor& dout, const AttentionChunks& dchunks);
template <class Real>
void advance_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                      const Tensor& dht, const Tensor& dh0);
template <class Real>
void gradients(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
               const Tensor& dout, const AttentionGradients& out);
template <class Real>
void state_at(const AttentionInputs& in, const AttentionChunks& chunks, int64_t token, const Tensor& h);
template <class Real>
void state_gradient_at(const AttentionInputs& in, const AttentionChunks& dchunks, const Tensor& dout, int64_t token,
                       const Tensor& dh);

}  // namespace baton::attention
