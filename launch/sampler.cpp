#include "launch/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/rng.h"

namespace baton {

Sampler::Sampler(const ModelConfig& config, DType dtype, const Stream& stream)
    : stream_(stream), tokens_({1, kPromptTokens}, DType::kInt32), positions_({1, kPromptTokens}, DType::kInt64) {
  Arena measuring{stream.device};
  lay_out(measuring, config, dtype);
  arena_ = std::make_unique<Arena>(stream.device, measuring.used_bytes());
  lay_out(*arena_, config, dtype);
  logits_.resize(static_cast<size_t>(config.vocab));
}

void Sampler::lay_out(Arena& arena, const ModelConfig& config, DType dtype) {
  model_ = std::make_unique<Model>(config, dtype, 1, kPromptTokens, false, arena);
  batch_.tokens = arena.tensor("batch", {1, kPromptTokens}, DType::kInt32);
  batch_.positions = arena.tensor("batch", {1, kPromptTokens}, DType::kInt64);
  entering_ = model_->make_states(arena, "states");
  leaving_ = model_->make_states(arena, "states");
  row_ = arena.tensor("head", {1, config.vocab}, Precision::of(dtype).accum);
}

void Sampler::feed_shard(const int32_t* tokens, int64_t count) {
  Batch shard = batch_;
  Tensor host_tokens = tokens_, host_positions = positions_;
  shard.tokens.shape = shard.positions.shape = host_tokens.shape = host_positions.shape = {1, count};
  for (int64_t t = 0; t < count; ++t) {
    host_tokens.as<int32_t>()[t] = tokens[t];
    host_positions.as<int64_t>()[t] = position_ + t;
  }
  copy(host_tokens, shard.tokens, stream_);
  copy(host_positions, shard.positions, stream_);
  model_->forward(shard, nullptr, entering_, leaving_, stream_);
  std::swap(entering_, leaving_);
  position_ += count;
  model_->logits(count - 1, 1, row_, stream_);
}

const std::vector<double>& Sampler::feed(const std::vector<int32_t>& tokens) {
  const auto n = static_cast<int64_t>(tokens.size());
  for (int64_t first = 0; first < n; first += kPromptTokens)
    feed_shard(tokens.data() + first, std::min(kPromptTokens, n - first));
  const HostView row(row_);
  row.download();
  dispatch_float(row_.dtype, [&]<class T>() { std::copy_n(row.host().as<T>(), logits_.size(), logits_.begin()); });
  return logits_;
}

int32_t draw_token(std::span<const double> logits, const SampleConfig& config, int64_t index) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (config.temperature == 0) return static_cast<int32_t>(likeliest - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t k = config.top_k > 0 ? std::min<size_t>(static_cast<size_t>(config.top_k), order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::vector<double> cumulative(k);
  double sum = 0;
  for (size_t i = 0; i < k; ++i) {
    sum += std::exp((logits[order[i]] - *likeliest) / config.temperature);
    cumulative[i] = sum;
  }
  const double u = sum * random_uniform(static_cast<uint64_t>(config.seed), 0, static_cast<uint64_t>(index));
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), u);
  return order[std::min<size_t>(static_cast<size_t>(at - cumulative.begin()), k - 1)];
}

}  // namespace baton
