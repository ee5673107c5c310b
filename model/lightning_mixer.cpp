#include "kernels/embedding.h"
#include "model/decay.h"
#include "model/mixer.h"

namespace baton {
namespace {

/// Lightning Attention in TransNormerLLM (arXiv 2401.04658, 2307.14995).
class LightningMixer final : public Mixer {
 public:
  LightningMixer(const ModelConfig& c, int64_t layer, const ParameterSet& p, const std::string& prefix, Arena& arena,
                 Precision precision)
      : Mixer(c, layer, p, prefix, "norm", "out_proj.weight"), theta_(p.find(prefix + "lrpe.theta")) {
    const Parameter qkvu = p.get(prefix + "qkvu_proj.weight");
    const int64_t D = c.width;
    const auto part = [&](int64_t i) {
      return Parameter{qkvu.value.rows(i * D, D), qkvu.gradient.defined() ? qkvu.gradient.rows(i * D, D) : Tensor{}};
    };
    q_ = part(0);
    k_ = part(1);
    v_ = part(2);
    gate_ = part(3);
    log_decay_ = arena.tensor("constants", {dims_.H}, precision.accum);
    weakest_log_decay_ = fill_log_decays(
        log_decay_, [&](int64_t head) { return lightning_log_decay(c.slope, layer, c.layers, head, c.heads); });
  }

 private:
  void project(const LayerActivations& a, const Scratch& s, const Batch& batch, const Stream& stream) const override {
    const auto query_or_key = [&](const Parameter& w, const Tensor& pre, const Tensor& out) {
      linear_forward(a.y1, w.value, pre, stream);
      if (!dims_.lrpe) return activation_forward(Activation::kSilu, pre, token_rows(out), stream);
      activation_forward(Activation::kSilu, pre, s.act, stream);
      lrpe_forward(heads(s.act, a), theta_.value, batch.positions, out, stream);
    };
    query_or_key(q_, a.q_pre, a.q);
    query_or_key(k_, a.k_pre, a.k);
    linear_forward(a.y1, v_.value, token_rows(a.v), stream);
  }

  void project_backward(const LayerActivations& a, const Scratch& s, const Batch& batch,
                        const Stream& stream) const override {
    const auto query_or_key = [&](const Parameter& w, const Tensor& pre, const Tensor& dout) {
      Tensor d = token_rows(dout);
      if (dims_.lrpe) {
        activation_forward(Activation::kSilu, pre, s.act, stream);
        lrpe_backward(heads(s.act, a), theta_.value, batch.positions, dout, heads(s.dact, a), theta_.gradient, stream);
        d = s.dact;
      }
      activation_backward(Activation::kSilu, pre, d, d, stream);
      linear_dw(d, a.y1, w.gradient, stream);
      linear_dx(d, w.value, s.dy, 1.0, stream);
    };
    query_or_key(q_, a.q_pre, s.dq);
    query_or_key(k_, a.k_pre, s.dk);
    linear_dw(token_rows(s.dv), a.y1, v_.gradient, stream);
    linear_dx(token_rows(s.dv), v_.value, s.dy, 1.0, stream);
  }

  AttentionInputs inputs(const LayerActivations& a, const Batch& batch) const override {
    return {dims_.attention(a.q.dim(0), a.q.dim(1), a.q.dtype), a.q, a.k, a.v, log_decay_, {}, batch.starts, 1.0};
  }

  Tensor heads(const Tensor& x, const LayerActivations& a) const {
    return x.view({a.q.dim(0), a.q.dim(1), dims_.H, dims_.K});
  }

  Parameter q_, k_, v_, theta_;
  Tensor log_decay_;
};

}  // namespace

std::unique_ptr<Mixer> make_lightning_mixer(const ModelConfig& config, int64_t layer, const ParameterSet& p,
                                            const std::string& prefix, Arena& arena, Precision precision) {
  return std::make_unique<LightningMixer>(config, layer, p, prefix, arena, precision);
}

}  // namespace baton
