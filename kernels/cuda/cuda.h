// The CUDA backend's operations: the same signatures as the public headers', which say what each does. dispatch.h calls
// them; nothing else does. Operands: activations bfloat16 or float32, log gates, states, statistics, weight gradients
// and moments float32.
#pragma once

#include "kernels/adamw.h"
#include "kernels/carry.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/linear_attention.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"

namespace baton::cuda {

// linear_attention.h
void carry_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Stream& stream);
void advance_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                     const Stream& stream);
void output_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& o, const Stream& stream);
void carry_backward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& dout,
                    const AttentionChunks& dchunks, const Stream& stream);
void advance_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                      const Tensor& dht, const Tensor& dh0, const Stream& stream);
void attention_gradients(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                         const Tensor& dout, const AttentionGradients& out, const Stream& stream);
void attention_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                       const Tensor& o, const Stream& stream);
void attention_states(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                      const Stream& stream);
void attention_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                        const Tensor& h0, const Tensor& dout, const Tensor& dht, const Tensor& dh0,
                        const AttentionGradients& out, const Stream& stream);
void state_at(const AttentionInputs& in, const AttentionChunks& chunks, int64_t token, const Tensor& h,
              const Stream& stream);
void state_gradient_at(const AttentionInputs& in, const AttentionChunks& dchunks, const Tensor& dout, int64_t token,
                       const Tensor& dh, const Stream& stream);

// carry.h: both directions of a shard's carry are one; `states` are the forward's or the gradient's
void shard_carry(const AttentionShape& shape, const AttentionChunks& chunks, const Tensor& states, bool reversed,
                 const Carry& carry, const Stream& stream);
void compose(const Carry& first, const Carry& second, const Carry& out, const Stream& stream);
void fixed_decay(const Tensor& log_decay, const Tensor& tokens, int64_t first, int64_t last, const Tensor& decay_k,
                 const Stream& stream);

// matmul.h
void matmul(const Tensor& a, Trans trans_a, const Tensor& b, Trans trans_b, const Tensor& c, double beta,
            const Stream& stream);

// norm.h
void norm_forward(NormKind kind, const Tensor& x, const Tensor& w, const Tensor& b, double eps, const Tensor& y,
                  const Tensor& stats, const Stream& stream);
void norm_backward(NormKind kind, const Tensor& x, const Tensor& w, const Tensor& stats, const Tensor& dy,
                   const Tensor& dx, double beta, const Tensor& dw, const Tensor& db, const Stream& stream);

// elementwise.h
void activation_forward(Activation act, const Tensor& x, const Tensor& y, const Stream& stream);
void activation_backward(Activation act, const Tensor& x, const Tensor& dy, const Tensor& dx, const Stream& stream);
void glu_forward(Activation act, const Tensor& a, const Tensor& b, const Tensor& y, const Stream& stream);
void glu_backward(Activation act, const Tensor& a, const Tensor& b, const Tensor& dy, const Tensor& da,
                  const Tensor& db, const Stream& stream);
void add_bias(const Tensor& x, const Tensor& bias, const Stream& stream);
void bias_gradient(const Tensor& dy, const Tensor& db, const Stream& stream);
void log_gate_forward(const Tensor& x, double temperature, const Tensor& g, const Stream& stream);
void log_gate_backward(const Tensor& x, double temperature, const Tensor& dg, const Tensor& dx, const Stream& stream);
void add_scaled(const Tensor& x, double alpha, const Tensor& y, const Stream& stream);
void convert(const Tensor& x, const Tensor& y, const Stream& stream);
double sum_of_squares(const Tensor& x, const Stream& stream);
bool all_finite(const Tensor& x, const Stream& stream);
void mark_not_finite(const Tensor& x, const Tensor& mark, const Stream& stream);

// embedding.h
void embedding_forward(const Tensor& tokens, const Tensor& w, double scale, const Tensor& y, const Stream& stream);
void embedding_backward(const Tensor& tokens, const Tensor& dy, double scale, const Tensor& dw, const Stream& stream);
void lrpe_forward(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& y, const Stream& stream);
void lrpe_backward(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& dy, const Tensor& dx,
                   const Tensor& dtheta, const Stream& stream);

// loss.h
void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& losses, double gradient_scale,
                   const Tensor& dlogits, const Stream& stream);

// adamw.h
void adamw(const AdamWStep& step, const Tensor& w, const Tensor& gradient, const Tensor& m, const Tensor& v,
           const Stream& stream);

}  // namespace baton::cuda
