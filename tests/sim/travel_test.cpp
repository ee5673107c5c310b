// The state really travels, and its gradient back: what rank 0 holds moves the last rank, in every head.
// Decays are weak, since with usual ones a state is forgotten within a shard or two.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "runtime/rng.h"
#include "tests/model_runner.h"
#include "tests/operator_ranks.h"

namespace baton::test {
namespace {

constexpr int kRanks = 4;  // of a whole model

/// Log gates in [-1e-3, 0], slopes likewise; nothing enters at the ends of the sequence.
AttentionProblem weak_problem(GateKind gate) {
  AttentionProblem p = random_problem({2, 4 * kChunk + 30, 3, 8, 16, gate}, 5);
  for (auto* gates : {&p.gk, &p.gv})
    for (size_t i = 0; i < gates->size(); ++i) (*gates)[i] = -1e-3 * random_uniform(8, 0, i);
  std::fill(p.h0.begin(), p.h0.end(), 0);
  std::fill(p.dht.begin(), p.dht.end(), 0);
  return p;
}

/// In the largest nodes that are not all ranks, where there are such.
std::vector<RankResult> on_ranks(const AttentionProblem& problem, ScanStrategy strategy, int P) {
  const std::vector<int> sizes = node_sizes(strategy, P);
  const int R = sizes[sizes.size() > 2 ? sizes.size() - 2 : sizes.size() - 1];
  return run_on_ranks(problem, DType::kFloat32, even_shards(problem.shape.T, P), strategy, 0, R);
}

/// Per head, the largest change of a tensor [B, T, H, ...].
std::vector<double> change_by_head(const AttentionShape& s, const std::vector<double>& a,
                                   const std::vector<double>& b) {
  std::vector<double> change(static_cast<size_t>(s.H));
  const auto row = static_cast<int64_t>(a.size()) / (s.B * s.T * s.H);
  for (int64_t i = 0; i < static_cast<int64_t>(a.size()); ++i) {
    double& most = change[static_cast<size_t>(i / row % s.H)];
    most = std::max(most, std::abs(a[static_cast<size_t>(i)] - b[static_cast<size_t>(i)]));
  }
  return change;
}

AttentionShape shard_shape(const AttentionProblem& p, int P, int rank) {
  AttentionShape s = p.shape;
  s.T = shard_of(s.T, P, rank).size();
  return s;
}

struct Way {
  GateKind gate;
  ScanStrategy strategy;
  int P;
  std::string str() const { return fmt::format("{} by {} on {} ranks", to_string(gate), to_string(strategy), P); }
};

std::vector<Way> all_ways() {
  std::vector<Way> all;
  for (const GateKind gate :
       {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector, GateKind::kBilinear})
    for (const ScanStrategy strategy : kScanStrategies)
      for (const int P : {2, 3, 4, 5, 8, 16, 17}) all.push_back({gate, strategy, P});
  return all;
}

TEST(Travel, ATokenOfTheFirstRankMovesTheLastRanksOutput) {
  for (const Way& way : all_ways()) {
    SCOPED_TRACE(way.str());
    AttentionProblem p = weak_problem(way.gate);
    const auto before = on_ranks(p, way.strategy, way.P);
    const AttentionShape& s = p.shape;
    const int64_t token = 7;
    for (int64_t b = 0; b < s.B; ++b)
      for (int64_t head = 0; head < s.H; ++head) {
        const int64_t at = (b * s.T + token) * s.H + head;
        for (int64_t i = 0; i < s.K; ++i) p.k[at * s.K + i] += 1;
        for (int64_t i = 0; i < s.V; ++i) p.v[at * s.V + i] += 1;
      }
    const auto after = on_ranks(p, way.strategy, way.P);
    const auto change =
        change_by_head(shard_shape(p, way.P, way.P - 1), before.back().tensors.at("o"), after.back().tensors.at("o"));
    for (int64_t head = 0; head < s.H; ++head) EXPECT_GT(change[static_cast<size_t>(head)], 0.1) << " head " << head;
  }
}

TEST(Travel, AGradientOfTheLastRankMovesTheFirstRanks) {
  for (const Way& way : all_ways()) {
    SCOPED_TRACE(way.str());
    AttentionProblem p = weak_problem(way.gate);
    const AttentionShape &s = p.shape, first = shard_shape(p, way.P, 0);
    const int64_t loud = shard_of(s.T, way.P, way.P - 1).first, row = s.H * s.V;
    for (size_t i = 0; i < p.dout.size(); ++i)
      if (static_cast<int64_t>(i) / row % s.T < loud) p.dout[i] = 0;
    const AttentionResult mine = on_ranks(p, way.strategy, way.P)[0].tensors;
    std::vector<const char*> names{"dk", "dv"};
    if (way.gate != GateKind::kNone && way.gate != GateKind::kFixed) names.push_back("dgk");
    if (way.gate == GateKind::kBilinear) names.push_back("dgv");
    for (const char* name : names) {
      const std::vector<double>& x = mine.at(name);
      const auto change = change_by_head(first, std::vector<double>(x.size()), x);
      for (int64_t head = 0; head < s.H; ++head)
        EXPECT_GT(change[static_cast<size_t>(head)], 0.1) << name << " head " << head;
    }
    for (double dq : mine.at("dq")) ASSERT_EQ(dq, 0);  // queries of the first rank read no later token
  }
}

/// Models whose layers hardly forget: a gate bias moves logsigmoid near 0; fixed decays are as they are.
std::vector<ModelConfig> models() {
  std::vector<ModelConfig> list;
  for (const char* mixer : {"none", "fixed", "scalar", "vector", "bilinear"}) {
    list.push_back(small_model("gla", mixer));
    list.back().gate_temperature = 1e4;
  }
  list.push_back(small_model("tnl"));
  return list;
}

constexpr int32_t kOnlyFirst = 10;  // a token that occurs at position 0 of row 0 alone

/// Tokens below kOnlyFirst but for position 0; a target only at the last position.
LoadTokens only_the_last_counts(int64_t T_total, int32_t first_token) {
  return [=](Range range, const Batch& batch) {
    for (int64_t t = range.first; t < range.last; ++t) {
      const int64_t i = t - range.first;
      batch.tokens.as<int32_t>()[i] = t == 0 ? first_token : made_up_token(0, t, kOnlyFirst);
      batch.targets.as<int32_t>()[i] = t + 1 == T_total ? 1 : -1;
      batch.starts.as<uint8_t>()[i] = 0;
      batch.positions.as<int64_t>()[i] = t;
    }
  };
}

struct LastPosition {
  std::vector<double> logits;         // of the last position
  std::vector<double> embedding_row;  // gradient of kOnlyFirst's embedding on rank 0, before any reduction
};

LastPosition run_last_position(const ModelConfig& config, int64_t T_total, int32_t first_token, ScanStrategy strategy) {
  LastPosition result;
  std::mutex mutex;
  run_ranks(kRanks, [&](Group& group) {
    group.set_ranks_per_node(2);
    const WindowPlan plan{T_total, T_total, kRanks, group.rank()};
    std::unique_ptr<Model> model;
    std::unique_ptr<SequencePass> pass;
    Tensor logits;
    const auto lay_out = [&](Arena& arena) {
      const int64_t T = WindowPlan::capacity(T_total, T_total, kRanks);
      model = std::make_unique<Model>(config, DType::kFloat64, 1, T, true, arena);
      pass = std::make_unique<SequencePass>(*model, group, strategy, 1, T, 1, arena);
      logits = arena.tensor("logits", {1, config.vocab}, DType::kFloat64);
    };
    Arena measuring{Device{}};
    lay_out(measuring);
    Arena arena(Device{}, measuring.used_bytes());
    lay_out(arena);
    fill_weights(model->table(), model->parameters().values, 3);
    pass->train(plan, true, 1.0, only_the_last_counts(T_total, first_token), nullptr, {}, nullptr, {}, {});
    const std::lock_guard lock(mutex);
    if (group.rank() == kRanks - 1) {
      model->logits(plan.shard(0).size() - 1, 1, logits, {});
      result.logits.assign(logits.as<double>(), logits.as<double>() + config.vocab);
    }
    if (group.rank() == 0) {
      const bool tnl = config.family == "tnl";
      const Tensor g = model->parameters().get(tnl ? "model.embed_tokens.weight" : "model.embeddings.weight").gradient;
      const double* row = g.as<double>() + kOnlyFirst * config.width;
      result.embedding_row.assign(row, row + config.width);
    }
  });
  return result;
}

TEST(Travel, ThroughTheWholeModel) {
  constexpr int64_t kTokens = 40;
  for (const ModelConfig& config : models())
    for (const ScanStrategy strategy : kScanStrategies) {
      SCOPED_TRACE(fmt::format("{} {} by {}", config.family, config.mixer, to_string(strategy)));
      const LastPosition a = run_last_position(config, kTokens, kOnlyFirst, strategy),
                         b = run_last_position(config, kTokens, 2, strategy);
      EXPECT_GT(relative_difference(a.logits, b.logits), 1e-6);
      double most = 0;
      for (double g : a.embedding_row) most = std::max(most, std::abs(g));
      EXPECT_GT(most, 1e-6);
      for (double g : b.embedding_row) ASSERT_EQ(g, 0);  // there the token occurs nowhere
    }
}

}  // namespace
}  // namespace baton::test
