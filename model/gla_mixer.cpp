#include <cmath>

#include "model/decay.h"
#include "model/mixer.h"

namespace baton {
namespace {

/// Gated Linear Attention (arXiv 2312.06635, section 4.4), with the gate kinds of its ablations.
class GlaMixer final : public Mixer {
 public:
  GlaMixer(const ModelConfig& c, int64_t layer, const ParameterSet& p, const std::string& prefix, Arena& arena,
           Precision precision)
      : Mixer(c, layer, p, prefix, "g_norm_swish_gate", "o_proj.weight"), temperature_(c.gate_temperature) {
    gate_act_ = Activation::kSilu;
    gate_ = p.get(prefix + "g_proj.weight");
    gate_bias_ = p.find(prefix + "g_proj.bias");
    q_ = p.get(prefix + "q_proj.weight");
    k_ = p.get(prefix + "k_proj.weight");
    v_ = p.get(prefix + "v_proj.weight");
    if (dims_.gate == GateKind::kScalar) gk_ = {{}, p.get(prefix + "g_gate.weight"), p.get(prefix + "g_gate.bias")};
    if (dims_.gate == GateKind::kVector || dims_.gate == GateKind::kBilinear) gk_ = low_rank(p, prefix + "gk_proj");
    if (dims_.gate == GateKind::kBilinear) gv_ = low_rank(p, prefix + "gv_proj");
    if (dims_.gate == GateKind::kFixed) {
      log_decay_ = arena.tensor("constants", {dims_.H}, precision.accum);
      weakest_log_decay_ = fill_log_decays(log_decay_, [](int64_t head) { return retnet_log_decay(head); });
    }
  }

 private:
  struct Gate {
    Parameter low, w, bias;  // low [low_rank, D] is undefined where the gate reads y1 itself
  };
  static Gate low_rank(const ParameterSet& p, const std::string& name) {
    return {p.get(name + ".0.weight"), p.get(name + ".1.weight"), p.get(name + ".1.bias")};
  }

  void gate_forward(const Gate& gate, const Tensor& y, const Tensor& low, const Tensor& pre, const Tensor& g,
                    const Stream& stream) const {
    if (gate.low.defined()) linear_forward(y, gate.low.value, low, stream);
    linear_forward(gate.low.defined() ? low : y, gate.w.value, pre, stream);
    add_bias(pre, gate.bias.value, stream);
    log_gate_forward(pre, temperature_, token_rows(g), stream);
  }

  void gate_backward(const Gate& gate, const Tensor& y, const Tensor& low, const Tensor& pre, const Tensor& dg,
                     const Scratch& s, const Stream& stream) const {
    const Tensor dsum = dg.view(pre.shape);
    log_gate_backward(pre, temperature_, dsum, dsum, stream);
    bias_gradient(dsum, gate.bias.gradient, stream);
    const Tensor dpre = as_operand(dsum, s.dgate_operand, stream);
    linear_dw(dpre, gate.low.defined() ? low : y, gate.w.gradient, stream);
    if (!gate.low.defined()) return linear_dx(dpre, gate.w.value, s.dy, 1.0, stream);
    linear_dx(dpre, gate.w.value, s.dlow, 0.0, stream);
    linear_dw(s.dlow, y, gate.low.gradient, stream);
    linear_dx(s.dlow, gate.low.value, s.dy, 1.0, stream);
  }

  void project(const LayerActivations& a, const Scratch&, const Batch&, const Stream& stream) const override {
    linear_forward(a.y1, q_.value, token_rows(a.q), stream);
    linear_forward(a.y1, k_.value, token_rows(a.k), stream);
    linear_forward(a.y1, v_.value, token_rows(a.v), stream);
    if (gk_.w.defined()) gate_forward(gk_, a.y1, a.gk_low, a.gk_pre, a.gk, stream);
    if (gv_.w.defined()) gate_forward(gv_, a.y1, a.gv_low, a.gv_pre, a.gv, stream);
  }

  void project_backward(const LayerActivations& a, const Scratch& s, const Batch&,
                        const Stream& stream) const override {
    const auto linear = [&](const Parameter& w, const Tensor& dy) {
      linear_dw(token_rows(dy), a.y1, w.gradient, stream);
      linear_dx(token_rows(dy), w.value, s.dy, 1.0, stream);
    };
    linear(q_, s.dq);
    linear(k_, s.dk);
    linear(v_, s.dv);
    if (gk_.w.defined()) gate_backward(gk_, a.y1, a.gk_low, a.gk_pre, s.dgk, s, stream);
    if (gv_.w.defined()) gate_backward(gv_, a.y1, a.gv_low, a.gv_pre, s.dgv, s, stream);
  }

  AttentionInputs inputs(const LayerActivations& a, const Batch& batch) const override {
    AttentionInputs in{dims_.attention(a.q.dim(0), a.q.dim(1), a.q.dtype), a.q, a.k, a.v, a.gk, a.gv, batch.starts};
    if (dims_.gate == GateKind::kFixed) in.gk = log_decay_;
    in.scale = 1.0 / std::sqrt(static_cast<double>(dims_.K));
    return in;
  }

  double temperature_;
  Parameter q_, k_, v_;
  Gate gk_, gv_;
  Tensor log_decay_;
};

}  // namespace

std::unique_ptr<Mixer> make_gla_mixer(const ModelConfig& config, int64_t layer, const ParameterSet& p,
                                      const std::string& prefix, Arena& arena, Precision precision) {
  return std::make_unique<GlaMixer>(config, layer, p, prefix, arena, precision);
}

}  // namespace baton
