#include "model/activations.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "model/carry.h"

namespace baton {
namespace {

enum class Needed { kAlways, kTraining, kMixedTraining };

/// A row of a table: the tensor, its shape, whether it adds up (Precision) and who needs it. Rows that a layer lacks
/// have no shape.
template <class S>
struct Row {
  Tensor S::*tensor;
  Shape shape;
  bool accum = false;
  Needed needed = Needed::kAlways;
};

std::vector<Row<LayerActivations>> activation_rows(const LayerDims& d, int64_t B, int64_t T) {
  using A = LayerActivations;
  const int64_t N = B * T, HK = d.H * d.K, HV = d.H * d.V;
  const bool low_rank = d.gate == GateKind::kVector || d.gate == GateKind::kBilinear;
  const bool bilinear = d.gate == GateKind::kBilinear, scalar = d.gate == GateKind::kScalar;
  const Shape none;
  return {
      {&A::x, {N, d.D}, true},
      {&A::y1, {N, d.D}},
      {&A::stats1, {N, 2}, true},
      {&A::q_pre, d.tnl ? Shape{N, HK} : none},
      {&A::k_pre, d.tnl ? Shape{N, HK} : none},
      {&A::q, {B, T, d.H, d.operator_k()}},
      {&A::k, {B, T, d.H, d.operator_k()}},
      {&A::v, {B, T, d.H, d.V}},
      {&A::gk_low, low_rank ? Shape{N, d.low_rank} : none},
      {&A::gk_pre,
       low_rank ? Shape{N, HK}
       : scalar ? Shape{N, d.H}
                : none,
       true},
      {&A::gk,
       low_rank ? Shape{B, T, d.H, d.K}
       : scalar ? Shape{B, T, d.H}
                : none,
       true},
      {&A::gv_low, bilinear ? Shape{N, d.low_rank} : none},
      {&A::gv_pre, bilinear ? Shape{N, HV} : none, true},
      {&A::gv, bilinear ? Shape{B, T, d.H, d.V} : none, true},
      {&A::r, {N, HV}},
      {&A::o, {B, T, d.H, d.V}},
      {&A::stats_o, {d.tnl ? N : N * d.H, 2}, true},
      {&A::x_mid, {N, d.D}, true},
      {&A::y2, {N, d.D}},
      {&A::stats2, {N, 2}, true},
      {&A::a, {N, d.F}},
      {&A::b, {N, d.F}},
  };
}

std::vector<Row<Scratch>> scratch_rows(const LayerDims& d, int64_t B, int64_t T) {
  using S = Scratch;
  const int64_t N = B * T, HV = d.H * d.V;
  const auto as_activation = [&](Tensor LayerActivations::*tensor) {
    for (const auto& row : activation_rows(d, B, T))
      if (row.tensor == tensor) return row.shape;
    return Shape{};
  };
  const Shape dgk = as_activation(&LayerActivations::gk), dgv = as_activation(&LayerActivations::gv);
  const Shape widest_gate = dgv.numel() > dgk.numel() ? dgv : dgk;
  return {
      {&S::normed, {N, HV}},
      {&S::gated, {N, HV}},
      {&S::hidden, {N, d.F}},
      {&S::dres, {N, d.D}, true, Needed::kTraining},
      {&S::dy, {N, d.D}, true, Needed::kTraining},
      {&S::dhidden, {N, d.F}, false, Needed::kTraining},
      {&S::da, {N, d.F}, false, Needed::kTraining},
      {&S::dgated, {N, HV}, false, Needed::kTraining},
      {&S::dr, {N, HV}, false, Needed::kTraining},
      {&S::dq, as_activation(&LayerActivations::q), false, Needed::kTraining},
      {&S::dk, as_activation(&LayerActivations::k), false, Needed::kTraining},
      {&S::dv, as_activation(&LayerActivations::v), false, Needed::kTraining},
      {&S::dgk, dgk, true, Needed::kTraining},
      {&S::dgv, dgv, true, Needed::kTraining},
      {&S::dlow, as_activation(&LayerActivations::gk_low), false, Needed::kTraining},
      {&S::dres_operand, {N, d.D}, false, Needed::kMixedTraining},
      {&S::dgate_operand, widest_gate, false, Needed::kMixedTraining},
      {&S::act, d.lrpe ? Shape{N, d.H * d.K} : Shape{}},
      {&S::dact, d.lrpe ? Shape{N, d.H * d.K} : Shape{}, false, Needed::kTraining},
      {&S::fixed_decay, has_learned_decay(d.gate) ? Shape{} : Shape{B, d.H, d.operator_k()}, true},
      {&S::leaving, {B, d.H, d.operator_k(), d.V}, true, Needed::kTraining},
  };
}

Tensor resized(Tensor capacity, const Shape& shape) {
  CHECK(shape.numel() <= capacity.numel(), "a shard of {} does not fit an activation of {}", shape.str(),
        capacity.shape.str());
  capacity.shape = shape;
  return shape.rank() > 0 ? capacity : Tensor{};
}

/// Of each tensor as much as the layer takes that takes most of it.
AttentionChunks make_chunks(const std::vector<AttentionShape>& layers, bool gradient, Arena& arena, DType dtype) {
  const auto largest = [&](DType kind, auto&& shape_of) {
    Shape shape;
    for (const AttentionShape& s : layers) {
      const Shape its = shape_of(s);
      if (its.rank() > 0 && (shape.rank() == 0 || its.numel() > shape.numel())) shape = its;
    }
    return shape.rank() > 0 ? arena.tensor("carries", shape, kind) : Tensor{};
  };
  AttentionChunks c;
  c.state = largest(dtype, [](const AttentionShape& s) { return s.span_states(); });
  if (gradient) return c;
  c.decay_k = largest(dtype, [](const AttentionShape& s) { return s.span_decays(s.K); });
  c.decay_v = largest(dtype, [](const AttentionShape& s) { return s.has_decay_v() ? s.span_decays(s.V) : Shape{}; });
  c.work = largest(DType::kUInt8, [](const AttentionShape& s) { return AttentionWork::of(s).shape(); });
  return c;
}

AttentionChunks cut_chunks(const AttentionChunks& c, const AttentionShape& s) {
  AttentionChunks r;
  if (!c.state.defined()) return r;
  r.state = resized(c.state, s.span_states());
  if (c.decay_k.defined()) r.decay_k = resized(c.decay_k, s.span_decays(s.K));
  if (c.decay_v.defined()) r.decay_v = resized(c.decay_v, s.span_decays(s.V));
  if (const Shape work = AttentionWork::of(s).shape(); work.rank() > 0 && c.work.defined())
    r.work = resized(c.work, work);
  return r;
}

}  // namespace

LayerDims LayerDims::of(const ModelConfig& c, int64_t layer) {
  LayerDims d{
      .D = c.width, .H = c.heads, .K = c.key_dim(), .V = c.value_dim(), .F = c.ffn_dim(), .low_rank = c.low_rank};
  d.tnl = c.family == "tnl";
  d.gate = d.tnl ? GateKind::kFixed : parse_gate_kind(c.mixer);
  if (d.tnl) {
    const std::vector<int64_t> lrpe = parse_index_list("model.lrpe_layers", c.lrpe_layers, c.layers);
    d.lrpe = std::find(lrpe.begin(), lrpe.end(), layer) != lrpe.end();
  }
  return d;
}

LayerActivations make_activations(const LayerDims& dims, int64_t B, int64_t T, Arena& arena, Precision precision) {
  LayerActivations a;
  for (const auto& row : activation_rows(dims, B, T))
    if (row.shape.rank() > 0)
      a.*row.tensor = arena.tensor("activations", row.shape, row.accum ? precision.accum : precision.compute);
  return a;
}

Scratch make_scratch(const std::vector<LayerDims>& dims, int64_t B, int64_t T, bool training, Arena& arena,
                     Precision precision) {
  // Layers differ in LRPE alone, so the layer with the largest K holds all others.
  const LayerDims& largest = *std::max_element(
      dims.begin(), dims.end(), [](const auto& a, const auto& b) { return a.operator_k() < b.operator_k(); });
  const auto needed = [&](Needed n) {
    return n == Needed::kAlways || (training && (n == Needed::kTraining || precision.mixed()));
  };
  Scratch s;
  for (const auto& row : scratch_rows(largest, B, T))
    if (row.shape.rank() > 0 && needed(row.needed))
      s.*row.tensor = arena.tensor("scratch", row.shape, row.accum ? precision.accum : precision.compute);
  std::vector<AttentionShape> layers;
  for (const LayerDims& d : dims) layers.push_back(d.attention(B, T, precision.compute));
  s.chunks = make_chunks(layers, false, arena, precision.accum);
  if (training) s.dchunks = make_chunks(layers, true, arena, precision.accum);
  return s;
}

LayerActivations cut(const LayerActivations& capacity, const LayerDims& dims, int64_t B, int64_t T) {
  LayerActivations a;
  for (const auto& row : activation_rows(dims, B, T)) a.*row.tensor = resized(capacity.*row.tensor, row.shape);
  return a;
}

Scratch cut(const Scratch& capacity, const LayerDims& dims, int64_t B, int64_t T) {
  Scratch s;
  for (const auto& row : scratch_rows(dims, B, T))
    if ((capacity.*row.tensor).defined()) s.*row.tensor = resized(capacity.*row.tensor, row.shape);
  const AttentionShape shape = dims.attention(B, T, s.normed.dtype);
  s.chunks = cut_chunks(capacity.chunks, shape);
  s.dchunks = cut_chunks(capacity.dchunks, shape);
  return s;
}

Tensor as_operand(const Tensor& x, const Tensor& copy, const Stream& stream) {
  if (!copy.defined()) return x;
  const Tensor operand = resized(copy, x.shape);
  convert(x, operand, stream);
  return operand;
}

}  // namespace baton
