// Sampler: continues a text token by token with the recurrent form: a shard of one token and the states it enters with,
// so memory and time a token are constant. It is the model's one path, with T = 1.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/model.h"

namespace baton {

class Sampler {
 public:
  /// One sequence on this rank alone. Prompts are taken in shards of at most kPromptTokens.
  Sampler(const ModelConfig& config, DType dtype, const Stream& stream);

  Model& model() { return *model_; }

  /// Appends tokens to the sequence; the logits [vocab] after the last one (double), valid until the next call.
  const std::vector<double>& feed(const std::vector<int32_t>& tokens);

  static constexpr int64_t kPromptTokens = 256;

 private:
  void feed_shard(const int32_t* tokens, int64_t count);
  void lay_out(Arena& arena, const ModelConfig& config, DType dtype);

  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Model> model_;
  Stream stream_;
  OwnedTensor tokens_, positions_;  // [1, kPromptTokens], on the host
  Batch batch_;                     // the same on the device
  States entering_, leaving_;
  Tensor row_;  // [1, vocab]
  std::vector<double> logits_;
  int64_t position_ = 0;
};

/// Draws a token: softmax(logits / temperature) over the top_k likeliest (0: all); the likeliest where temperature is
/// 0. Depends on (seed, index) alone.
int32_t draw_token(std::span<const double> logits, const SampleConfig& config, int64_t index);

}  // namespace baton
