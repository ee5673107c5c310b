// Operations of one element, or of a few in one place: activations, GLU, log gates, sums.
#pragma once

#include "runtime/stream.h"

namespace baton {

enum class Activation { kNone, kSilu };

/// y = act(x); may alias. Any equal shapes.
void activation_forward(Activation act, const Tensor& x, const Tensor& y, const Stream& stream);
/// dx = dy * act'(x); dx may alias dy.
void activation_backward(Activation act, const Tensor& x, const Tensor& dy, const Tensor& dx, const Stream& stream);

/// y = act(a) * b: the GLU of a feed-forward, and the output gate of a mixer. Equal shapes.
void glu_forward(Activation act, const Tensor& a, const Tensor& b, const Tensor& y, const Stream& stream);
/// da = dy * act'(a) * b; db = dy * act(a). da may alias a, db may alias b or dy.
void glu_backward(Activation act, const Tensor& a, const Tensor& b, const Tensor& dy, const Tensor& da,
                  const Tensor& db, const Stream& stream);

/// x [N, D] += bias [D] on every row; and its gradient db[D] += column sums of dy [N, D], deterministically.
void add_bias(const Tensor& x, const Tensor& bias, const Stream& stream);
void bias_gradient(const Tensor& dy, const Tensor& db, const Stream& stream);

/// g = logsigmoid(x) / temperature, the log gate of GLA (arXiv 2312.06635, 4.4); stable for any x. g may alias x.
void log_gate_forward(const Tensor& x, double temperature, const Tensor& g, const Stream& stream);
/// dx = dg * sigmoid(-x) / temperature, from the forward's x; dx may alias dg.
void log_gate_backward(const Tensor& x, double temperature, const Tensor& dg, const Tensor& dx, const Stream& stream);

/// y = x in the dtype of y, rounded to nearest even; any of float32, float64 and bfloat16 (this one by way of float32).
void convert(const Tensor& x, const Tensor& y, const Stream& stream);

/// y += alpha * x, equal shapes.
void add_scaled(const Tensor& x, double alpha, const Tensor& y, const Stream& stream);

/// Sum of squares of all elements in double, in an order that does not depend on the number of threads.
double sum_of_squares(const Tensor& x, const Stream& stream);
/// True when no element is NaN or Inf.
bool all_finite(const Tensor& x, const Stream& stream);
/// The same without waiting: mark, int32 [1] beside x, becomes 1 where an element is NaN or Inf and stays otherwise.
void mark_not_finite(const Tensor& x, const Tensor& mark, const Stream& stream);

}  // namespace baton
