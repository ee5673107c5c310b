// Dumps of a small model: the same at any number of ranks and windows, and the per-token loop's states.
#include <gtest/gtest.h>

#include "tests/dump_runner.h"
#include "tests/reference/attention_runner.h"

namespace baton::test {
namespace {

TEST(StateDump, RanksAndWindowsDoNotShow) {
  std::vector<ModelConfig> models{small_model("tnl")};
  for (const char* mixer : {"none", "scalar", "vector", "bilinear"}) models.push_back(small_model("gla", mixer));
  for (const ModelConfig& config : models)
    for (const int64_t window : {0, 70}) {
      SCOPED_TRACE(fmt::format("{} {} window {}", config.family, config.mixer, window));
      ModelRun run{.config = config, .T_total = 150, .starts = {40, 75}};
      const Dump one = without_sp(dump_of(run));
      EXPECT_EQ(one.at("layer.1/state").shape[1], 7);  // positions 0, 24, .., 144
      run.window = window;
      run.num_ranks = 3;
      expect_same(one, without_sp(dump_of(run)), 1e-12);
    }
}

TEST(StateDump, SameBitsWhereShardsEndOnChunkBoundaries) {
  ModelRun run{.config = small_model("gla"), .dtype = DType::kFloat32, .T_total = 3 * kChunk};
  const Dump one = without_sp(dump_of(run));
  run.num_ranks = 3;
  expect_same(one, without_sp(dump_of(run)), 0);
}

TEST(StateDump, WhatAndLayersAreChosen) {
  const Dump dump = dump_of({.config = small_model("gla", "bilinear"), .num_ranks = 2}, "gate", "1");
  std::vector<std::string> paths;
  for (const auto& [path, x] : dump) paths.push_back(path);
  EXPECT_EQ(paths, (std::vector<std::string>{"layer.1/gate", "layer.1/gate_v", "sp/layer.1/entering"}));
}

TEST(StateDump, EnteringStatesAreThoseAtTheShardsFirstTokens) {
  ModelRun run{.config = small_model("gla"), .T_total = 6 * kGrid, .window = 4 * kGrid, .num_ranks = 2};
  const Dump dump = dump_of(run);
  const Dumped &state = dump.at("layer.1/state"), &entering = dump.at("sp/layer.1/entering");
  ASSERT_EQ(entering.shape[0], 4);  // 2 windows x 2 ranks
  const int64_t B = state.shape[0], G = state.shape[1], size = entering.shape.numel() / 4 / B;
  const int64_t points[] = {0, 2, 4, 5};
  for (int64_t shard = 0; shard < 4; ++shard)
    for (int64_t b = 0; b < B; ++b)
      for (int64_t i = 0; i < size; ++i)
        ASSERT_EQ(entering.values[(shard * B + b) * size + i], state.values[(b * G + points[shard]) * size + i])
            << "shard " << shard;
}

/// What a layer's operator reads, of one rank and one window.
AttentionProblem problem_of(const Probed& p) {
  const auto values = [](const Tensor& x) {
    return x.defined() ? std::vector<double>(x.as<double>(), x.as<double>() + x.numel()) : std::vector<double>{};
  };
  AttentionProblem problem{p.in.shape,
                           p.in.scale,
                           values(p.in.q),
                           values(p.in.k),
                           values(p.in.v),
                           values(p.in.gk),
                           values(p.in.gv),
                           {},
                           values(p.dout),
                           {},
                           {p.in.starts.as<uint8_t>(), p.in.starts.as<uint8_t>() + p.in.starts.numel()}};
  problem.h0.resize(static_cast<size_t>(p.in.shape.state().numel()));
  problem.dht.resize(problem.h0.size());
  return problem;
}

TEST(StateDump, StatesAreThoseOfTheTokenLoop) {
  for (const auto& config : {small_model("gla"), small_model("gla", "bilinear"), small_model("tnl")}) {
    std::map<int64_t, AttentionProblem> problems;
    ModelRun run{.config = config, .T_total = 150, .starts = {40, 75}};
    const Dump dump = dump_of([&] {
      run.num_ranks = 3;
      return run;
    }());
    run.num_ranks = 1;
    run.probe = [&](Group&) -> Probe { return [&](const Probed& p) { problems[p.layer] = problem_of(p); }; };
    run_model(run);
    for (const auto& [layer, problem] : problems) {
      const Dumped& state = dump.at(fmt::format("layer.{}/state", layer));
      const Dumped& dstate = dump.at(fmt::format("layer.{}/dstate", layer));
      const int64_t B = state.shape[0], G = state.shape[1], size = state.shape.numel() / B / G;
      for (int64_t point = 0; point < G; ++point) {
        SCOPED_TRACE(fmt::format("{} layer {} position {}", config.family, layer, point * kGrid));
        // The state after `token` tokens is ht of those alone; its gradient is dh0 of the rest.
        const int64_t token = point * kGrid;
        const auto ht = token_reference(take_tokens(problem, 0, token)).at("ht");
        const auto dh0 = token_reference(take_tokens(problem, token, problem.shape.T)).at("dh0");
        std::vector<double> h, dh;
        for (int64_t b = 0; b < B; ++b) {
          const int64_t at = (b * G + point) * size;
          h.insert(h.end(), state.values.begin() + at, state.values.begin() + at + size);
          dh.insert(dh.end(), dstate.values.begin() + at, dstate.values.begin() + at + size);
        }
        EXPECT_LE(relative_difference(ht, h), 1e-12);
        EXPECT_LE(relative_difference(dh0, dh), 1e-12);
      }
    }
    EXPECT_EQ(problems.size(), 2U);
  }
}

}  // namespace
}  // namespace baton::test
