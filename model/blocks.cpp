#include "model/blocks.h"

namespace baton {

FeedForward::FeedForward(const LayerDims& dims, const ParameterSet& p, const std::string& layer)
    : act_(dims.tnl ? Activation::kNone : Activation::kSilu),
      gate_(p.get(layer + (dims.tnl ? "channel_mixer.l1.weight" : "mlp.gate_proj.weight"))),
      up_(p.get(layer + (dims.tnl ? "channel_mixer.l2.weight" : "mlp.up_proj.weight"))),
      down_(p.get(layer + (dims.tnl ? "channel_mixer.l3.weight" : "mlp.down_proj.weight"))) {}

void FeedForward::forward(const LayerActivations& a, const Scratch& s, const Tensor& x, const Stream& stream) const {
  linear_forward(a.y2, gate_.value, a.a, stream);
  linear_forward(a.y2, up_.value, a.b, stream);
  glu_forward(act_, a.a, a.b, s.hidden, stream);
  matmul(s.hidden, Trans::kNo, down_.value, Trans::kYes, x, 1.0, stream);
}

void FeedForward::backward(const LayerActivations& a, const Scratch& s, const Stream& stream) const {
  const Tensor dout = as_operand(s.dres, s.dres_operand, stream);
  glu_forward(act_, a.a, a.b, s.hidden, stream);
  linear_dw(dout, s.hidden, down_.gradient, stream);
  linear_dx(dout, down_.value, s.dhidden, 0.0, stream);
  glu_backward(act_, a.a, a.b, s.dhidden, s.da, s.dhidden, stream);
  linear_dw(s.da, a.y2, gate_.gradient, stream);
  linear_dw(s.dhidden, a.y2, up_.gradient, stream);
  linear_dx(s.da, gate_.value, s.dy, 0.0, stream);
  linear_dx(s.dhidden, up_.value, s.dy, 1.0, stream);
}

}  // namespace baton
