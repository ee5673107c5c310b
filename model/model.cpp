#include "model/model.h"

#include <algorithm>
#include <cmath>

#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "runtime/profiler.h"

namespace baton {
namespace {

/// Rows whose logits exist at once, so that the vocabulary's memory does not grow with the sequence.
constexpr int64_t kHeadRows = 1024;

}  // namespace

Model::Model(const ModelConfig& config, DType dtype, int64_t B, int64_t T, bool training, Arena& arena)
    : config_(config),
      precision_(Precision::of(dtype)),
      max_B_(B),
      max_T_(T),
      table_(std::make_unique<ParameterTable>(config)) {
  const bool tnl = config.family == "tnl";
  const NormKind kind = parse_norm_kind(config.norm_name());
  parameters_.table = table_.get();
  parameters_.values = arena.tensor("parameters", {table_->flat_numel()}, precision_.accum);
  if (precision_.mixed()) parameters_.operands = arena.tensor("operands", {table_->flat_numel()}, precision_.compute);
  if (training) parameters_.gradients = arena.tensor("gradients", {table_->flat_numel()}, precision_.accum);
  embedding_ = parameters_.get(tnl ? "model.embed_tokens.weight" : "model.embeddings.weight");
  head_ = config.tie_embeddings ? embedding_ : parameters_.get("lm_head.weight");
  if (tnl) embedding_scale_ = std::sqrt(static_cast<double>(config.width));
  final_norm_ = std::make_unique<Norm>(kind, config.norm_eps, parameters_, tnl ? "model.final_norm" : "model.norm");

  std::vector<LayerDims> dims;
  for (int64_t l = 0; l < config.layers; ++l) {
    const LayerDims& d = dims.emplace_back(LayerDims::of(config, l));
    const std::string name = fmt::format("model.layers.{}.", l);
    layers_.push_back({d,
                       table_->first_element(name),
                       Norm(kind, config.norm_eps, parameters_, name + (tnl ? "token_norm" : "attn_norm")),
                       Norm(kind, config.norm_eps, parameters_, name + (tnl ? "channel_norm" : "mlp_norm")),
                       Mixer::make(config, l, parameters_, arena, precision_),
                       FeedForward(d, parameters_, name),
                       {},
                       {}});
  }
  // Without training every layer uses the activations of the one with the largest operator.
  size_t largest = 0;
  for (size_t l = 0; l < dims.size(); ++l)
    if (dims[l].operator_k() > dims[largest].operator_k()) largest = l;
  const LayerActivations shared =
      training ? LayerActivations{} : make_activations(dims[largest], B, T, arena, precision_);
  for (Layer& layer : layers_)
    layer.capacity = training ? make_activations(layer.dims, B, T, arena, precision_) : shared;
  scratch_ = make_scratch(dims, B, T, training, arena, precision_);
  x_final_ = arena.tensor("activations", {B * T, config.width}, precision_.accum);
  y_final_ = arena.tensor("activations", {B * T, config.width}, precision_.compute);
  stats_final_ = arena.tensor("activations", {B * T, 2}, precision_.accum);
  losses_ = arena.tensor("head", {B * T}, DType::kFloat64);
  const Shape head_rows{std::min(B * T, kHeadRows), config.vocab};
  logits_ = arena.tensor("head", head_rows, precision_.accum);
  if (training && precision_.mixed()) dlogits_ = arena.tensor("head", head_rows, precision_.compute);
  if (arena.device().type != DeviceType::kCpu && !arena.measuring())
    host_losses_ = OwnedTensor({B * T}, DType::kFloat64);
}

void Model::refresh_operands(const Stream& stream) const {
  if (parameters_.operands.defined()) convert(parameters_.values, parameters_.operands, stream);
}

int64_t Model::largest_carry() const {
  int64_t largest = 0;
  for (const Layer& layer : layers_)
    largest = std::max(largest, carry_numel(layer.dims.attention(max_B_, 1, precision_.compute)));
  return largest;
}

int64_t Model::carry_rows() const { return max_B_ * layers_.front().dims.H; }

States Model::make_states(Arena& arena, const std::string& group) const {
  States states;
  for (const Layer& layer : layers_)
    states.push_back(
        arena.tensor(group, layer.dims.attention(max_B_, 1, precision_.compute).state(), precision_.accum));
  return states;
}

void Model::forward(const Batch& batch, StateScan* scan, const States& entering, const States& leaving,
                    const Stream& stream) {
  const int64_t B = batch.tokens.dim(0), T = batch.tokens.dim(1);
  CHECK(B == max_B_ && T <= max_T_, "a shard of {} x {} tokens does not fit a model made for {} x {}", B, T, max_B_,
        max_T_);
  const ProfilerRange whole("forward");
  num_rows_ = B * T;
  for (Layer& layer : layers_) layer.act = cut(layer.capacity, layer.dims, B, T);
  embedding_forward(batch.tokens.view({num_rows_}), embedding_.value, embedding_scale_, layers_[0].act.x, stream);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const ProfilerRange range("layer", static_cast<int64_t>(l));
    ProfilerRange phase("mixer");
    const Layer& layer = layers_[l];
    const LayerActivations& a = layer.act;
    const Scratch s = cut(scratch_, layer.dims, B, T);
    layer.mixer_norm.forward(a.x, a.y1, a.stats1, stream);
    copy(a.x, a.x_mid, stream);
    layer.mixer->forward(a, s, batch, {scan, entering[l], leaving[l]}, stream);
    phase.next("feed-forward");
    layer.ffn_norm.forward(a.x_mid, a.y2, a.stats2, stream);
    const Tensor x_out = l + 1 < layers_.size() ? layers_[l + 1].act.x : x_final_.rows(0, num_rows_);
    copy(a.x_mid, x_out, stream);
    layer.ffn.forward(a, s, x_out, stream);
  }
  final_norm_->forward(x_final_.rows(0, num_rows_), y_final_.rows(0, num_rows_), stats_final_.rows(0, num_rows_),
                       stream);
}

void Model::logits(int64_t first, int64_t count, const Tensor& out, const Stream& stream) const {
  linear_forward(y_final_.rows(0, num_rows_).rows(first, count), head_.value, out, stream);
}

double Model::head_loss(const Batch& batch, double gradient_scale, bool with_gradient, const Stream& stream) {
  const ProfilerRange whole("head");
  const Tensor targets = batch.targets.view({num_rows_});
  double sum = 0;
  for (int64_t first = 0; first < num_rows_; first += kHeadRows) {
    const int64_t count = std::min(kHeadRows, num_rows_ - first);
    const Tensor block = logits_.rows(0, count), y = y_final_.rows(first, count);
    logits(first, count, block, stream);
    const Tensor dlogits = !with_gradient ? Tensor{} : dlogits_.defined() ? dlogits_.rows(0, count) : block;
    cross_entropy(block, targets.rows(first, count), losses_.rows(first, count), gradient_scale, dlogits, stream);
    if (!with_gradient) continue;
    linear_dw(dlogits, y, head_.gradient, stream);
    linear_dx(dlogits, head_.value, scratch_.dy.rows(first, count), 0.0, stream);  // the gradient of y_final
  }
  if (host_losses_.tensor.defined()) copy(losses_.rows(0, num_rows_), losses(), stream);
  synchronize(stream);
  const double* losses = host_losses().as<double>();
  for (int64_t i = 0; i < num_rows_; ++i) sum += losses[i];
  return sum;
}

void Model::backward(const Batch& batch, StateScan& scan, const States& entering, const States& dstates_in,
                     const States& dstates_out, GradientReduction* reduction, const Probe& probe,
                     const Stream& stream) {
  const int64_t B = batch.tokens.dim(0), T = batch.tokens.dim(1), N = num_rows_;
  const ProfilerRange whole("backward");
  const Tensor dres = scratch_.dres.rows(0, N), dy = scratch_.dy.rows(0, N);
  final_norm_->backward(x_final_.rows(0, N), stats_final_.rows(0, N), dy, dres, 0.0, stream);
  for (size_t l = layers_.size(); l-- > 0;) {
    const ProfilerRange range("layer", static_cast<int64_t>(l));
    ProfilerRange phase("feed-forward");
    const Layer& layer = layers_[l];
    const LayerActivations& a = layer.act;
    const Scratch s = cut(scratch_, layer.dims, B, T);
    layer.ffn.backward(a, s, stream);
    layer.ffn_norm.backward(a.x_mid, a.stats2, s.dy, dres, 1.0, stream);
    phase.next("mixer");
    layer.mixer->backward(a, s, batch, entering[l], {&scan, dstates_in[l], dstates_out[l]}, probe, stream);
    layer.mixer_norm.backward(a.x, a.stats1, s.dy, dres, 1.0, stream);
    if (reduction) reduction->final_from(layer.first_element, stream);
  }
  embedding_backward(batch.tokens.view({N}), dres, embedding_scale_, embedding_.gradient, stream);
  if (reduction) reduction->final_from(0, stream);
}

}  // namespace baton
