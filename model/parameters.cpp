#include "model/parameters.h"

#include <algorithm>
#include <cmath>

#include "runtime/memory.h"
#include "runtime/rng.h"

namespace baton {
namespace {

constexpr int64_t kRowAlignment = 64;  // elements, so that every view is aligned

uint64_t hash_name(const std::string& name) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3;
  return h;
}

}  // namespace

ParameterTable::ParameterTable(const ModelConfig& config)
    : init_std_(config.init_std),
      residual_std_(config.init_std / std::sqrt(2.0 * static_cast<double>(std::max<int64_t>(config.layers, 1)))) {
  CHECK(config.vocab > 0, "the vocabulary must be known before parameters are laid out");
  if (config.family == "gla")
    add_gla(config);
  else
    add_tnl(config);
}

void ParameterTable::add(const std::string& name, const Shape& shape, Init init, double std, bool decay) {
  index_[name] = rows_.size();
  rows_.push_back({name, shape, init, std, decay, flat_numel_});
  num_parameters_ += shape.numel();
  flat_numel_ += (shape.numel() + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

void ParameterTable::add_weight(const std::string& name, int64_t out, int64_t in) {
  add(name, {out, in}, Init::kNormal, init_std_, true);
}

void ParameterTable::add_norm(const std::string& prefix, int64_t width, const std::string& kind) {
  if (kind != "simple_rmsnorm") add(prefix + ".weight", {width}, Init::kOnes, 0, false);
  if (kind == "layernorm") add(prefix + ".bias", {width}, Init::kZeros, 0, false);
}

void ParameterTable::add_gla(const ModelConfig& c) {
  const int64_t D = c.width, H = c.heads, keys = H * c.key_dim(), values = H * c.value_dim(), F = c.ffn_dim();
  const std::string norm = c.norm_name();
  add_weight("model.embeddings.weight", c.vocab, D);
  const auto low_rank_gate = [&](const std::string& name, int64_t width) {
    add_weight(name + ".0.weight", c.low_rank, D);
    add_weight(name + ".1.weight", width, c.low_rank);
    add(name + ".1.bias", {width}, Init::kZeros, 0, false);
  };
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l), attn = layer + "attn.";
    add_norm(layer + "attn_norm", D, norm);
    add_weight(attn + "q_proj.weight", keys, D);
    add_weight(attn + "k_proj.weight", keys, D);
    add_weight(attn + "v_proj.weight", values, D);
    add_weight(attn + "g_proj.weight", values, D);
    if (c.gate_bias) add(attn + "g_proj.bias", {values}, Init::kZeros, 0, false);
    if (c.mixer == "vector" || c.mixer == "bilinear") low_rank_gate(attn + "gk_proj", keys);
    if (c.mixer == "bilinear") low_rank_gate(attn + "gv_proj", values);
    if (c.mixer == "scalar") {
      add_weight(attn + "g_gate.weight", H, D);
      add(attn + "g_gate.bias", {H}, Init::kZeros, 0, false);
    }
    add_norm(attn + "g_norm_swish_gate", c.value_dim(), norm);
    add(attn + "o_proj.weight", {D, values}, Init::kNormal, residual_std_, true);
    add_norm(layer + "mlp_norm", D, norm);
    add_weight(layer + "mlp.gate_proj.weight", F, D);
    add_weight(layer + "mlp.up_proj.weight", F, D);
    add(layer + "mlp.down_proj.weight", {D, F}, Init::kNormal, residual_std_, true);
  }
  add_norm("model.norm", D, norm);
  if (!c.tie_embeddings) add_weight("lm_head.weight", c.vocab, D);
}

void ParameterTable::add_tnl(const ModelConfig& c) {
  const int64_t D = c.width, F = c.ffn_dim();
  const std::string norm = c.norm_name();
  const std::vector<int64_t> lrpe = parse_index_list("model.lrpe_layers", c.lrpe_layers, c.layers);
  add_weight("model.embed_tokens.weight", c.vocab, D);
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    add_norm(layer + "token_norm", D, norm);
    add_weight(layer + "token_mixer.qkvu_proj.weight", 4 * D, D);
    if (std::find(lrpe.begin(), lrpe.end(), l) != lrpe.end())
      add(layer + "token_mixer.lrpe.theta", {c.heads, 1, c.key_dim()}, Init::kLrpe, 0, false);
    add_norm(layer + "token_mixer.norm", D, norm);
    add(layer + "token_mixer.out_proj.weight", {D, D}, Init::kNormal, residual_std_, true);
    add_norm(layer + "channel_norm", D, norm);
    add_weight(layer + "channel_mixer.l1.weight", F, D);
    add_weight(layer + "channel_mixer.l2.weight", F, D);
    add(layer + "channel_mixer.l3.weight", {D, F}, Init::kNormal, residual_std_, true);
  }
  add_norm("model.final_norm", D, norm);
  if (!c.tie_embeddings) add_weight("lm_head.weight", c.vocab, D);
}

int64_t ParameterTable::first_element(const std::string& prefix) const {
  const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const auto& r) { return r.name.starts_with(prefix); });
  CHECK(row != rows_.end(), "the parameter table has no row that begins with {}", prefix);
  return row->offset;
}

Tensor ParameterTable::view(const Tensor& flat, const ParameterRow& row) const {
  return flat.rows(row.offset, row.shape.numel()).view(row.shape);
}

Tensor ParameterTable::view(const Tensor& flat, const std::string& name) const {
  const auto it = index_.find(name);
  CHECK(it != index_.end(), "the parameter table has no row {}", name);
  return view(flat, rows_[it->second]);
}

void initialize(const ParameterTable& table, const Tensor& flat, int64_t seed) {
  if (flat.device.type != DeviceType::kCpu) {
    const OwnedTensor host(flat.shape, flat.dtype);
    initialize(table, host, seed);
    const Stream stream{flat.device};
    copy(host, flat, stream);
    return synchronize(stream);
  }
  for (const ParameterRow& row : table.rows()) {
    const Tensor x = table.view(flat, row);
    const uint64_t stream = hash_name(row.name);
    const auto count = static_cast<double>(row.shape.numel());
    dispatch_float(x.dtype, [&]<class T>() {
      T* p = x.as<T>();
      const int64_t n = x.numel();
#pragma omp parallel for schedule(static)
      for (int64_t i = 0; i < n; ++i) {
        double value = 0;
        if (row.init == Init::kOnes) value = 1;
        if (row.init == Init::kNormal)
          value = row.std * random_normal(static_cast<uint64_t>(seed), stream, static_cast<uint64_t>(i));
        if (row.init == Init::kLrpe) value = std::pow(10000.0, -2.0 * static_cast<double>(i) / count);
        p[i] = static_cast<T>(value);
      }
    });
  }
}

Parameter ParameterSet::get(const std::string& name) const {
  Tensor value = table->view(values, name);
  if (operands.defined() && value.shape.rank() == 2) value = table->view(operands, name);
  return {value, gradients.defined() ? table->view(gradients, name) : Tensor{}};
}

}  // namespace baton
