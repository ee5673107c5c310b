// Blocks that both model families share: a norm with its weights, and the GLU feed-forward.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "model/activations.h"
#include "model/parameters.h"

namespace baton {

/// A norm of rows of `width` elements; weight and bias are there or not as the kind says.
struct Norm {
  Norm(NormKind kind, double eps, const ParameterSet& p, const std::string& prefix)
      : kind(kind), eps(eps), w(p.find(prefix + ".weight")), b(p.find(prefix + ".bias")) {}

  void forward(const Tensor& x, const Tensor& y, const Tensor& stats, const Stream& stream) const {
    norm_forward(kind, x, w.value, b.value, eps, y, stats, stream);
  }
  /// dx += gradient where beta is 1, dx = gradient where it is 0.
  void backward(const Tensor& x, const Tensor& stats, const Tensor& dy, const Tensor& dx, double beta,
                const Stream& stream) const {
    norm_backward(kind, x, w.value, stats, dy, dx, beta, w.gradient, b.gradient, stream);
  }

  NormKind kind;
  double eps;
  Parameter w, b;
};

/// x += down(act(gate y) * (up y)).
class FeedForward {
 public:
  /// Names of the three weights: mlp.{gate,up,down}_proj (gla), channel_mixer.{l1,l2,l3} (tnl).
  FeedForward(const LayerDims& dims, const ParameterSet& p, const std::string& layer);

  /// y [N, D] -> adds to x [N, D]; keeps a.a and a.b.
  void forward(const LayerActivations& a, const Scratch& s, const Tensor& x, const Stream& stream) const;
  /// s.dres is the gradient of the output; s.dy becomes that of y.
  void backward(const LayerActivations& a, const Scratch& s, const Stream& stream) const;

 private:
  Activation act_;
  Parameter gate_, up_, down_;
};

}  // namespace baton
