// The sampler: token by token it is the model on a whole shard; what is drawn depends on seed and index alone.
#include "launch/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "launch/text_stream.h"
#include "tests/model_runner.h"

namespace baton::test {
namespace {

std::vector<int32_t> made_up_text(int64_t T, int64_t vocab) {
  std::vector<int32_t> text;
  for (int64_t t = 0; t < T; ++t) text.push_back(made_up_token(0, t, vocab));
  return text;
}

/// Logits [T][vocab] of the text as one shard.
std::vector<std::vector<double>> shard_logits(const ModelConfig& config, const std::vector<int32_t>& text) {
  const auto T = static_cast<int64_t>(text.size());
  std::unique_ptr<Model> model;
  States entering, leaving;
  const auto lay_out = [&](Arena& arena) {
    model = std::make_unique<Model>(config, DType::kFloat64, 1, T, false, arena);
    entering = model->make_states(arena, "states");
    leaving = model->make_states(arena, "states");
  };
  Arena measuring{Device{}};
  lay_out(measuring);
  Arena arena(Device{}, measuring.used_bytes());
  lay_out(arena);
  fill_weights(model->table(), model->parameters().values, 3);
  const OwnedTensor tokens({1, T}, DType::kInt32), positions({1, T}, DType::kInt64);
  for (int64_t t = 0; t < T; ++t) {
    tokens.tensor.as<int32_t>()[t] = text[static_cast<size_t>(t)];
    positions.tensor.as<int64_t>()[t] = t;
  }
  Batch batch;
  batch.tokens = tokens;
  batch.positions = positions;
  model->forward(batch, nullptr, entering, leaving, {});
  const OwnedTensor logits({T, config.vocab}, DType::kFloat64);
  model->logits(0, T, logits, {});
  std::vector<std::vector<double>> rows;
  for (int64_t t = 0; t < T; ++t) {
    const double* row = logits.tensor.as<double>() + t * config.vocab;
    rows.emplace_back(row, row + config.vocab);
  }
  return rows;
}

std::vector<ModelConfig> models() {
  std::vector<ModelConfig> list{small_model("tnl")};
  list[0].lrpe_layers = "0";
  for (const char* mixer : {"none", "fixed", "scalar", "vector", "bilinear"}) list.push_back(small_model("gla", mixer));
  return list;
}

TEST(Sampler, TokenByTokenIsOneShard) {
  for (const ModelConfig& config : models()) {
    SCOPED_TRACE(config.family + " " + config.mixer);
    const std::vector<int32_t> text = made_up_text(150, config.vocab);
    const auto expected = shard_logits(config, text);
    Sampler sampler(config, DType::kFloat64, Stream{});
    fill_weights(sampler.model().table(), sampler.model().parameters().values, 3);
    for (size_t t = 0; t < text.size(); ++t)
      ASSERT_LE(relative_difference(expected[t], sampler.feed({text[t]})), 1e-12) << "token " << t;
  }
}

TEST(Sampler, PromptsMayBeLongerThanAShard) {
  for (const ModelConfig& config : models()) {
    SCOPED_TRACE(config.family + " " + config.mixer);
    std::vector<int32_t> text = made_up_text(2 * Sampler::kPromptTokens + 41, config.vocab);
    const auto expected = shard_logits(config, text);
    const int32_t last = text.back();
    text.pop_back();
    Sampler sampler(config, DType::kFloat64, Stream{});
    fill_weights(sampler.model().table(), sampler.model().parameters().values, 3);
    EXPECT_LE(relative_difference(expected[text.size() - 1], sampler.feed(text)), 1e-12);
    EXPECT_LE(relative_difference(expected[text.size()], sampler.feed({last})), 1e-12);
  }
}

const std::vector<double> kLogits{0.5, 2.0, -1.0, 2.5, 2.0, -INFINITY};

TEST(DrawToken, DependsOnSeedAndIndexAlone) {
  SampleConfig config;
  std::vector<int32_t> forward, other_seed;
  for (int64_t i = 0; i < 50; ++i) forward.push_back(draw_token(kLogits, config, i));
  for (int64_t i = 49; i >= 0; --i) EXPECT_EQ(draw_token(kLogits, config, i), forward[static_cast<size_t>(i)]);
  config.seed = 2;
  for (int64_t i = 0; i < 50; ++i) other_seed.push_back(draw_token(kLogits, config, i));
  EXPECT_NE(forward, other_seed);
}

TEST(DrawToken, TemperatureZeroIsTheLikeliest) {
  SampleConfig config;
  config.temperature = 0;
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(draw_token(kLogits, config, i), 3);
}

TEST(DrawToken, TopKLeavesTheLikeliest) {
  SampleConfig config;
  config.temperature = 5;
  for (const auto& [k, expected] : {std::pair<int64_t, std::set<int32_t>>{1, {3}},
                                    {2, {1, 3}},  // of equal ones the first
                                    {3, {1, 3, 4}},
                                    {0, {0, 1, 2, 3, 4}},
                                    {99, {0, 1, 2, 3, 4}}}) {
    config.top_k = k;
    std::set<int32_t> drawn;
    for (int64_t i = 0; i < 400; ++i) drawn.insert(draw_token(kLogits, config, i));
    EXPECT_EQ(drawn, expected) << "top_k " << k;
  }
}

TEST(DrawToken, FrequenciesAreThoseOfTheSoftmax) {
  SampleConfig config;
  config.temperature = 0.7;
  constexpr int64_t kDraws = 40000;
  std::vector<double> count(kLogits.size()), weight(kLogits.size());
  double sum = 0;
  for (size_t i = 0; i < weight.size(); ++i) sum += weight[i] = std::exp(kLogits[i] / config.temperature);
  for (int64_t i = 0; i < kDraws; ++i) ++count[static_cast<size_t>(draw_token(kLogits, config, i))];
  for (size_t i = 0; i < weight.size(); ++i) {
    const double p = weight[i] / sum;
    EXPECT_NEAR(count[i] / kDraws, p, 5 * std::sqrt(p * (1 - p) / kDraws)) << "token " << i;  // 5 sigma
  }
}

TEST(TextStream, BytesComeOutAsTheyAre) {
  const auto tokenizer = make_byte_tokenizer();
  TextStream stream(*tokenizer);
  std::string all(1, '\0');
  for (int i = 255; i >= 0; --i) all.push_back(static_cast<char>(i));
  all += "\xC3\xA9 \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD end \xE2\x82";
  std::string shown;
  for (int32_t token : tokenizer->encode(all)) shown += stream.put(token);
  EXPECT_EQ(shown + stream.finish(), all);
}

}  // namespace
}  // namespace baton::test
