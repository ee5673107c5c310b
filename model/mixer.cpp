#include "model/mixer.h"

#include "runtime/profiler.h"

namespace baton {

Tensor token_rows(const Tensor& x) {
  int64_t width = 1;
  for (int i = 2; i < x.shape.rank(); ++i) width *= x.dim(i);
  return x.view({x.dim(0) * x.dim(1), width});
}
Mixer::Mixer(const ModelConfig& config, int64_t layer, const ParameterSet& p, const std::string& prefix,
             const std::string& norm, const std::string& out)
    : layer_(layer),
      dims_(LayerDims::of(config, layer)),
      out_(p.get(prefix + out)),
      norm_(parse_norm_kind(config.norm_name()), config.norm_eps, p, prefix + norm) {}

Tensor Mixer::norm_rows(const Tensor& o) const {
  const int64_t N = o.dim(0) * o.dim(1);
  return dims_.tnl ? o.view({N, dims_.H * dims_.V}) : o.view({N * dims_.H, dims_.V});
}

FixedDecays Mixer::fixed_decays(const AttentionInputs& in, const Scratch& s, const Batch& batch) const {
  return {batch.shard_tokens, s.fixed_decay,
          batch.forgets || decays_forget(in.shape, s.leaving.dtype, weakest_log_decay_, batch.early_send)};
}

void Mixer::output(const LayerActivations& a, const Scratch& s, const Stream& stream) const {
  const Tensor rows = norm_rows(a.o);
  norm_.forward(rows, s.normed.view(rows.shape), a.stats_o, stream);
  glu_forward(gate_act_, a.r, s.normed, s.gated, stream);
}

void Mixer::forward(const LayerActivations& a, const Scratch& s, const Batch& batch, const StatePass& pass,
                    const Stream& stream) const {
  ProfilerRange phase("project");
  project(a, s, batch, stream);
  const AttentionInputs in = inputs(a, batch);
  if (pass.alone()) {
    phase.next("attention");
    attention_forward(in, s.chunks, pass.entering, pass.leaving, a.o, stream);
    gate_forward(a, stream);
  } else {
    phase.next("carry");
    carry_forward(in, s.chunks, stream);
    phase.next("hand-over");
    const FixedDecays fixed = fixed_decays(in, s, batch);
    pass.scan->begin(Direction::kForward, pass.entering, pass.leaving, forward_carry(in, s.chunks, fixed, stream),
                     stream);
    gate_forward(a, stream);  // independent of the state: runs while it travels
    pass.scan->finish(stream);
    phase.next("attention");
    output_forward(in, s.chunks, a.o, stream);
  }
  phase.next("output");
  output(a, s, stream);
  matmul(s.gated, Trans::kNo, out_.value, Trans::kYes, a.x_mid, 1.0, stream);
}

void Mixer::backward(const LayerActivations& a, const Scratch& s, const Batch& batch, const Tensor& h0,
                     const StatePass& dpass, const Probe& probe, const Stream& stream) const {
  ProfilerRange phase("output");
  output(a, s, stream);
  const Tensor dresidual = as_operand(s.dres, s.dres_operand, stream);
  linear_dx(dresidual, out_.value, s.dgated, 0.0, stream);
  linear_dw(dresidual, s.gated, out_.gradient, stream);
  glu_backward(gate_act_, a.r, s.normed, s.dgated, s.dr, s.dgated, stream);
  const Tensor rows = norm_rows(a.o), dout = s.normed.view(a.o.shape);  // normed is not needed any more
  norm_.backward(rows, a.stats_o, s.dgated.view(rows.shape), dout.view(rows.shape), 0.0, stream);

  phase.next("carry");
  const AttentionInputs in = inputs(a, batch);
  const AttentionGradients out{s.dq, s.dk, s.dv, s.dgk, s.dgv};
  if (dpass.alone()) {
    attention_states(in, s.chunks, h0, probe ? s.leaving : Tensor{}, stream);
    phase.next("gradients");
    attention_backward(in, s.chunks, s.dchunks, h0, dout, dpass.entering, dpass.leaving, out, stream);
    gate_backward(a, s, stream);
  } else {
    carry_forward(in, s.chunks, stream);
    advance_forward(in, s.chunks, h0, s.leaving, stream);
    carry_backward(in, s.chunks, dout, s.dchunks, stream);
    phase.next("hand-over");
    const FixedDecays fixed = fixed_decays(in, s, batch);
    dpass.scan->begin(Direction::kReversed, dpass.entering, dpass.leaving,
                      backward_carry(in, s.chunks, s.dchunks, fixed, stream), stream);
    gate_backward(a, s, stream);  // independent of the state's gradient: runs while it travels
    dpass.scan->finish(stream);
    phase.next("gradients");
    attention_gradients(in, s.chunks, s.dchunks, dout, out, stream);
  }
  if (probe) probe({layer_, batch.range, in, s.chunks, s.dchunks, dout, stream});
  phase.next("project");
  project_backward(a, s, batch, stream);
}

void Mixer::gate_forward(const LayerActivations& a, const Stream& stream) const {
  linear_forward(a.y1, gate_.value, a.r, stream);
  if (gate_bias_.defined()) add_bias(a.r, gate_bias_.value, stream);
}

void Mixer::gate_backward(const LayerActivations& a, const Scratch& s, const Stream& stream) const {
  linear_dw(s.dr, a.y1, gate_.gradient, stream);
  if (gate_bias_.defined()) bias_gradient(s.dr, gate_bias_.gradient, stream);
  linear_dx(s.dr, gate_.value, s.dy, 0.0, stream);
}

std::unique_ptr<Mixer> Mixer::make(const ModelConfig& config, int64_t layer, const ParameterSet& p, Arena& arena,
                                   Precision precision) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  if (config.family == "gla") return make_gla_mixer(config, layer, p, prefix + "attn.", arena, precision);
  return make_lightning_mixer(config, layer, p, prefix + "token_mixer.", arena, precision);
}

}  // namespace baton
