#include "runtime/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/unit/error_text.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::function<void(Config&)>& change, int world_size = 4) {
  Config config;
  change(config);
  return input_error([&] { validate(config, world_size); });
}

TEST(Config, DefaultsAreValid) {
  for (int world_size : {1, 2, 3, 8}) EXPECT_NO_THROW(validate(Config(), world_size));
}

TEST(Config, RefusesEveryBadValueByItsKey) {
  const std::vector<std::pair<const char*, std::function<void(Config&)>>> cases = {
      {"run.device = gpu: ", [](Config& c) { c.run.device = "gpu"; }},
      {"run.dtype = half: ", [](Config& c) { c.run.dtype = "half"; }},
      {"run.dtype = bfloat16: ", [](Config& c) { c.run.device = "cpu", c.run.dtype = "bfloat16"; }},
      {"run.dtype = float64: ", [](Config& c) { c.run.device = "cuda", c.run.dtype = "float64"; }},
      {"run.seed = -1: ", [](Config& c) { c.run.seed = -1; }},
      {"run.threads = -2: ", [](Config& c) { c.run.threads = -2; }},
      {"run.log_every = 0: ", [](Config& c) { c.run.log_every = 0; }},
      {"run.grace = -1: ", [](Config& c) { c.run.grace = -1; }},
      {"run.profile = 5: ", [](Config& c) { c.run.profile = "5"; }},
      {"run.profile = 5:4: must be none or first:last", [](Config& c) { c.run.profile = "5:4"; }},
      {"model.family = gpt: ", [](Config& c) { c.model.family = "gpt"; }},
      {"model.mixer = conv: ", [](Config& c) { c.model.mixer = "conv"; }},
      {"model.mixer = bilinear: ", [](Config& c) { c.model.family = "tnl", c.model.mixer = "bilinear"; }},
      {"model.layers = 0: ", [](Config& c) { c.model.layers = 0; }},
      {"model.width = -8: ", [](Config& c) { c.model.width = -8; }},
      {"model.heads = 0: ", [](Config& c) { c.model.heads = 0; }},
      {"model.width = 130: must be a multiple of model.heads = 4", [](Config& c) { c.model.width = 130; }},
      {"model.expand_k = 0.3: ", [](Config& c) { c.model.expand_k = 0.3; }},
      {"model.expand_k = 0.0078125: ", [](Config& c) { c.model.expand_k = 1.0 / 128; }},
      {"model.expand_v = 0: ", [](Config& c) { c.model.expand_v = 0; }},
      {"model.vocab = 2147483648: ", [](Config& c) { c.model.vocab = int64_t{1} << 31; }},
      {"model.low_rank = 0: ", [](Config& c) { c.model.low_rank = 0; }},
      {"model.norm = batchnorm: ", [](Config& c) { c.model.norm = "batchnorm"; }},
      {"model.norm_eps = 0: ", [](Config& c) { c.model.norm_eps = 0; }},
      {"model.slope = steep: ", [](Config& c) { c.model.slope = "steep"; }},
      {"model.lrpe_layers = 0,4: ", [](Config& c) { c.model.family = "tnl", c.model.lrpe_layers = "0,4"; }},
      {"data.format = csv: ", [](Config& c) { c.data.format = "csv"; }},
      {"data.format = spm: ", [](Config& c) { c.data.format = "spm"; }},
      {"data.seq_len = 0: ", [](Config& c) { c.data.seq_len = 0; }},
      {"data.order = random: must be permuted or stream", [](Config& c) { c.data.order = "random"; }},
      {"checkpoint.state = runs/a: must come with data.order = stream",
       [](Config& c) { c.checkpoint.state = "runs/a"; }},
      {"data.separator = eot: ", [](Config& c) { c.data.separator = "eot"; }},
      {"data.separator = -1: ", [](Config& c) { c.data.separator = "-1"; }},
      {"train.steps = -1: ", [](Config& c) { c.train.steps = -1; }},
      {"train.batch = 0: ", [](Config& c) { c.train.batch = 0; }},
      {"train.batch = 8: must be at most 1, so that a step has no more than 281474976710656 tokens",
       [](Config& c) { c.data.seq_len = int64_t{1} << 48; }},
      {"parallel.deadline = 0: ", [](Config& c) { c.parallel.deadline = 0; }},
      {"plan.memory = -1: ", [](Config& c) { c.plan.memory = -1; }},
      {"train.micro_batch = 9: ", [](Config& c) { c.train.micro_batch = 9; }},
      {"train.micro_batch = 3: must divide the 8 sequences", [](Config& c) { c.train.micro_batch = 3; }},
      {"train.window = 513: ", [](Config& c) { c.train.window = 513; }},
      {"train.window_mode = lax: ", [](Config& c) { c.train.window_mode = "lax"; }},
      {"train.schedule = step: ", [](Config& c) { c.train.schedule = "step"; }},
      {"train.lr = -0.1: ", [](Config& c) { c.train.lr = -0.1; }},
      {"train.lr_min = 0.5: ", [](Config& c) { c.train.lr_min = 0.5; }},
      {"train.beta1 = 1: ", [](Config& c) { c.train.beta1 = 1; }},
      {"train.beta2 = -0.5: ", [](Config& c) { c.train.beta2 = -0.5; }},
      {"train.eps = 0: ", [](Config& c) { c.train.eps = 0; }},
      {"train.weight_decay = -1: ", [](Config& c) { c.train.weight_decay = -1; }},
      {"train.clip = -1: ", [](Config& c) { c.train.clip = -1; }},
      {"train.decay_fraction = 1.5: ", [](Config& c) { c.train.decay_fraction = 1.5; }},
      {"eval.tokens = 0: ", [](Config& c) { c.eval.tokens = 0; }},
      {"parallel.early_send = 2: ", [](Config& c) { c.parallel.early_send = 2; }},
      {"parallel.scan = ring: ", [](Config& c) { c.parallel.scan = "ring"; }},
      {"parallel.sp = -1: ", [](Config& c) { c.parallel.sp = -1; }},
      {"parallel.sp = 3: must divide the number of ranks, 4", [](Config& c) { c.parallel.sp = 3; }},
      {"parallel.sp = 8: must divide the number of ranks, 4", [](Config& c) { c.parallel.sp = 8; }},
      {"train.batch = 6: must be a multiple of the 4 groups", [](Config& c) { c.parallel.sp = 1, c.train.batch = 6; }},
      {"checkpoint.keep = -1: ", [](Config& c) { c.checkpoint.keep = -1; }},
      {"dump.grid = 0: ", [](Config& c) { c.dump.grid = 0; }},
      {"dump.what = state,momentum: ", [](Config& c) { c.dump.what = "state,momentum"; }},
      {"dump.layers = 7: ", [](Config& c) { c.dump.layers = "7"; }},
      {"sample.temperature = -1: ", [](Config& c) { c.sample.temperature = -1; }},
      {"sample.top_k = -1: ", [](Config& c) { c.sample.top_k = -1; }},
  };
  for (const auto& [message, change] : cases) {
    const std::string text = refusal(change);
    EXPECT_THAT(text, testing::StartsWith(message));
    EXPECT_THAT(text, HasSubstr("must "));
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

TEST(Config, ModelDimensions) {
  ModelConfig m;
  m.width = 2048, m.heads = 4;
  EXPECT_EQ(m.key_dim(), 256);
  EXPECT_EQ(m.value_dim(), 512);
  EXPECT_EQ(m.ffn_dim(), 5632);
  EXPECT_EQ(m.norm_name(), "rmsnorm");
  m.width = 1024;
  EXPECT_EQ(m.ffn_dim(), 2816);
  m.ffn = 48;
  EXPECT_EQ(m.ffn_dim(), 48);
  m.family = "tnl", m.width = 4096, m.heads = 32, m.ffn = 0;
  EXPECT_EQ(m.key_dim(), 128);
  EXPECT_EQ(m.value_dim(), 128);
  EXPECT_EQ(m.ffn_dim(), 11008);
  EXPECT_EQ(m.norm_name(), "simple_rmsnorm");
}

TEST(Config, NumbersAreReadWhole) {
  int64_t integer = 0;
  set_value("k", "-9223372036854775808", integer);
  EXPECT_EQ(integer, std::numeric_limits<int64_t>::min());
  for (const char* text : {"", "1e6", "1.0", "9223372036854775808", "+1", " 1", "0x10"})
    EXPECT_THAT(input_error([&] { set_value("train.steps", text, integer); }), HasSubstr("must be an integer")) << text;
  double number = 0;
  set_value("k", "3e-4", number);
  EXPECT_EQ(number, 3e-4);
  for (const char* text : {"", "abc", "nan", "inf", "1,5", "1e999", "1 "})
    EXPECT_EQ(input_error([&] { set_value("train.lr", text, number); }),
              std::string("train.lr = ") + text + ": must be a number");
  bool flag = false;
  EXPECT_EQ(input_error([&] { set_value("a.b", "1", flag); }), "a.b = 1: must be true or false");
}

TEST(Config, IndexLists) {
  EXPECT_THAT(parse_index_list("k", "all", 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(parse_index_list("k", "none", 3), ElementsAre());
  EXPECT_THAT(parse_index_list("k", "2,0,2", 3), ElementsAre(0, 2));
  for (const char* text : {"", "3", "-1", "0,", ",0", "0;1", "a"})
    EXPECT_THAT(input_error([&] { parse_index_list("dump.layers", text, 3); }), HasSubstr("from 0 to 2")) << text;
}

TEST(Config, StepRanges) {
  const StepRange steps = parse_step_range("k", "9:10");
  for (int64_t step : {8, 9, 10, 11}) EXPECT_EQ(steps.contains(step), step == 9 || step == 10) << step;
  EXPECT_TRUE(parse_step_range("k", "3:3").contains(3));
  for (int64_t step : {-1, 0, 1}) EXPECT_FALSE(parse_step_range("k", "none").contains(step));
  for (const char* text : {"", ":", "1:", ":2", "0:1", "-1:2", "2:1", "1:2:3", "1-2", "1: 2", "a:b"})
    EXPECT_THAT(input_error([&] { parse_step_range("run.profile", text); }), HasSubstr("must be none or first:last"))
        << text;
}

TEST(Config, DifferencesNameKeyAndBothValues) {
  Config a, b;
  EXPECT_TRUE(differences(a, b).empty());
  b.model.width = 256, b.train.lr = 3e-4, b.eval.by_position = true;
  EXPECT_THAT(differences(a, b),
              ElementsAre("model.width: 128 -> 256", "train.lr: 0.001 -> 0.0003", "eval.by_position: false -> true"));
}

TEST(Config, NearestName) {
  const std::vector<std::string> names = {"train.steps", "train.lr", "model.width"};
  EXPECT_EQ(nearest_name("train.step", names), "train.steps");
  EXPECT_EQ(nearest_name("steps", names), "train.steps");
  EXPECT_EQ(nearest_name("model.widht", names), "model.width");
}

}  // namespace
}  // namespace baton
