// The model against itself: ranks, windows and documents against one rank and one window; gradients against
// differences.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/rng.h"
#include "tests/model_runner.h"

namespace baton::test {
namespace {

/// Every kind of model there is, small.
std::vector<std::pair<std::string, ModelConfig>> all_models() {
  std::vector<std::pair<std::string, ModelConfig>> models;
  for (const char* mixer : {"none", "fixed", "scalar", "vector", "bilinear"})
    models.emplace_back(mixer, small_model("gla", mixer));
  auto& layernorm = models.emplace_back("layernorm", small_model("gla")).second;
  layernorm.norm = "layernorm";
  layernorm.gate_bias = true;
  models.emplace_back("tied", small_model("gla")).second.tie_embeddings = true;
  models.emplace_back("tnl", small_model("tnl"));
  auto& tnl = models.emplace_back("tnl_other", small_model("tnl")).second;
  tnl.lrpe_layers = "all";
  tnl.slope = "fla";
  tnl.norm = "rmsnorm";
  return models;
}

/// Per parameter: the largest relative difference over the table's rows.
void expect_same_gradients(const ModelConfig& config, const ModelResult& a, const ModelResult& b, double bound) {
  const ParameterTable table(config);
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const ParameterRow& row : table.rows()) {
    const auto slice = [&](const ModelResult& r) {
      return std::vector<double>(r.gradients.begin() + row.offset,
                                 r.gradients.begin() + row.offset + row.shape.numel());
    };
    EXPECT_LE(relative_difference(slice(a), slice(b)), bound) << row.name;
  }
  EXPECT_EQ(a.counted, b.counted);
  EXPECT_NEAR(a.loss_sum, b.loss_sum, bound * std::abs(a.loss_sum));
}

TEST(Model, GradientsAreTheDifferencesOfTheLoss) {
  for (const auto& [name, config] : all_models()) {
    SCOPED_TRACE(name);
    ModelRun run{.config = config, .T_total = 90, .starts = {13, 14, 70}};
    const ModelResult result = run_model(run);
    const ParameterTable table(config);
    for (size_t r = 0; r < table.rows().size(); ++r) {
      const ParameterRow& row = table.rows()[r];
      const double length = std::sqrt(static_cast<double>(row.shape.numel()));
      const auto direction = [&](int64_t i) { return random_normal(99, r, static_cast<uint64_t>(i)) / length; };
      const auto moved_loss = [&](double step) {
        return run_model(run,
                         [&](const ParameterTable& t, const Tensor& flat) {
                           double* w = t.view(flat, row).as<double>();
                           for (int64_t i = 0; i < row.shape.numel(); ++i) w[i] += step * direction(i);
                         })
            .loss_sum;
      };
      constexpr double kStep = 1e-5;
      const double difference = (moved_loss(kStep) - moved_loss(-kStep)) / (2 * kStep);
      double derivative = 0, size = 0;
      for (int64_t i = 0; i < row.shape.numel(); ++i) {
        derivative += result.gradients[row.offset + i] * direction(i);
        size += std::pow(result.gradients[row.offset + i], 2);
      }
      EXPECT_NEAR(derivative, difference, 2e-6 * std::max(std::sqrt(size), 1e-2)) << row.name;
    }
  }
}

TEST(Model, RanksGiveTheGradientsOfOne) {
  for (const auto& [name, config] : all_models())
    for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
      ModelRun run{.config = config, .dtype = dtype, .T_total = 150, .starts = {40, 41, 75, 149}};
      const ModelResult one = run_model(run);
      for (int ranks : {2, 3, 4, 5, 8}) {
        SCOPED_TRACE(name + " " + to_string(dtype) + " on " + std::to_string(ranks));
        run.num_ranks = ranks;
        expect_same_gradients(config, one, run_model(run), dtype == DType::kFloat64 ? 1e-11 : 1e-5);
      }
    }
}

// Two rows with documents, windows and shards of 11 and 12 tokens.
TEST(Model, EveryStrategyOfTheScanGivesTheGradientsOfAChain) {
  for (const auto& [name, config] : all_models())
    for (const int64_t window : {0, 70}) {
      ModelRun run{.config = config, .T_total = 150, .window = window, .num_ranks = 6, .starts = {40, 41, 75, 149}};
      const ModelResult chain = run_model(run);
      run.ranks_per_node = 2;
      for (const ScanStrategy scan : {ScanStrategy::kDoubling, ScanStrategy::kAllGather, ScanStrategy::kHierarchical}) {
        SCOPED_TRACE(fmt::format("{} by {}, windows of {}", name, to_string(scan), window));
        run.scan = scan;
        for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
          run.dtype = dtype;
          expect_same_gradients(config, chain, run_model(run), dtype == DType::kFloat64 ? 1e-11 : 1e-5);
        }
      }
    }
}

TEST(Model, WindowsOnAnyNumberOfRanksByEveryStrategy) {
  for (const char* mixer : {"none", "fixed", "scalar", "vector", "bilinear"}) {
    ModelRun run{.config = small_model("gla", mixer), .T_total = 70, .starts = {40, 41, 69}};
    const ModelResult one = run_model(run);
    run.window = 33;
    for (const auto& [ranks, ranks_per_node] : {std::pair{1, 1}, {2, 2}, {3, 3}, {5, 5}, {8, 4}, {16, 8}, {17, 17}})
      for (const ScanStrategy scan : kScanStrategies) {
        SCOPED_TRACE(fmt::format("{} by {} on {}", mixer, to_string(scan), ranks));
        run.num_ranks = ranks, run.ranks_per_node = ranks_per_node, run.scan = scan;
        expect_same_gradients(run.config, one, run_model(run), 1e-11);
      }
  }
}

// Of two heads the one that forgets less keeps 0.82 in a shard of 50 tokens, in the first layer; the second layer keeps
// nearly all.
TEST(Model, EarlySendTakesAFixedDecayForNothing) {
  ModelRun run{.config = small_model("tnl"), .T_total = 150, .num_ranks = 3};
  const ModelResult exact = run_model(run);
  run.early_send = 0.5;
  EXPECT_EQ(run_model(run).gradients, exact.gradients);
  run.early_send = 0.9;
  const double off = relative_difference(exact.gradients, run_model(run).gradients);
  EXPECT_GT(off, 1e-6);
  EXPECT_LT(off, 1);
}

TEST(Model, ShardsMayBeEmpty) {
  for (const int64_t T : {1, 2, 5}) {
    ModelRun run{.config = small_model("gla"), .T_total = T};
    const ModelResult one = run_model(run);
    run.num_ranks = 8;
    expect_same_gradients(run.config, one, run_model(run), 1e-11);
  }
}

TEST(Model, ExactWindowsGiveTheGradientsOfOneWindow) {
  for (const auto& [name, config] : all_models())
    for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
      ModelRun run{.config = config, .dtype = dtype, .T_total = 150, .starts = {40, 149}};
      const ModelResult one = run_model(run);
      for (const int64_t window : {64, 70, 149})
        for (int ranks : {1, 3}) {
          SCOPED_TRACE(name + " windows of " + std::to_string(window) + " on " + std::to_string(ranks));
          run.window = window;
          run.num_ranks = ranks;
          expect_same_gradients(config, one, run_model(run), dtype == DType::kFloat64 ? 1e-11 : 1e-5);
        }
      run.window = 0;
    }
}

// Truncated windows hand the state on (the loss is the whole sequence's) but not its gradient.
TEST(Model, TruncatedWindowsKeepTheLossAndChangeTheGradient) {
  ModelRun run{.config = small_model("gla"), .T_total = 150};
  const ModelResult whole = run_model(run);
  run.window = 50;
  run.exact = false;
  const ModelResult one_rank = run_model(run);
  run.num_ranks = 3;
  const ModelResult three_ranks = run_model(run);
  EXPECT_NEAR(one_rank.loss_sum, whole.loss_sum, 1e-11 * whole.loss_sum);
  EXPECT_GT(relative_difference(whole.gradients, one_rank.gradients), 1e-4);
  expect_same_gradients(run.config, one_rank, three_ranks, 1e-11);
}

// Documents of 60 and 90 tokens, the second starting inside a shard; the first has no target after its last token.
TEST(Model, PackedDocumentsAreTheDocumentsApart) {
  for (const auto& [name, config] : all_models()) {
    SCOPED_TRACE(name);
    ModelRun run{.config = config, .T_total = 60, .starts = {60}};
    ModelResult apart = run_model(run);
    run.T_total = 90, run.starts = {}, run.first_token = 60;
    const ModelResult second = run_model(run);
    for (size_t i = 0; i < apart.gradients.size(); ++i) apart.gradients[i] += second.gradients[i];
    apart.loss_sum += second.loss_sum, apart.counted += second.counted;
    run.T_total = 150, run.starts = {60}, run.first_token = 0;
    for (const int ranks : {1, 3, 7}) {
      run.num_ranks = ranks;
      expect_same_gradients(config, apart, run_model(run), 1e-11);
    }
  }
}

TEST(Model, BytesAreThoseOfTheFormula) {
  const ModelConfig config = small_model("gla");
  const LayerDims d = LayerDims::of(config, 0);
  for (const int64_t T : {64, 256, 1024})
    for (int ranks : {2, 4}) {
      const ModelRun run{.config = config, .dtype = DType::kFloat32, .T_total = T, .num_ranks = ranks};
      // Each layer, forward and backward: every rank but one sends 4 B H K V bytes.
      EXPECT_EQ(run_model(run).sent_bytes, config.layers * 2 * (ranks - 1) * 4 * run.B * d.H * d.K * d.V);
    }
}

}  // namespace
}  // namespace baton::test
