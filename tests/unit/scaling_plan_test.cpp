#include "launch/scaling_plan.h"

#include <gmock/gmock.h>

#include <regex>

#include "tests/run_ranks.h"
#include "tests/unit/error_text.h"

namespace baton {
namespace {

using testing::HasSubstr;

/// Four layers of [2, 4, 16, 32] states: 16 KiB, carries 16.5 KiB.
Config configuration() {
  Config c;
  c.run.device = "cpu";
  c.model.vocab = 256;
  c.data.seq_len = 128;
  c.train.batch = 8;
  c.train.micro_batch = 2;
  c.plan.ranks = "1,2,6";
  c.plan.ranks_per_node = 3;
  c.plan.step_s = 0.5;
  c.plan.latency = 50, c.plan.bandwidth = 1;
  c.plan.compose_latency = 5, c.plan.compose_bandwidth = 10;
  return c;
}

ScalingPlan plan_of(const Config& c) { return ScalingPlan::of(c, Topology{}, ParameterTable(c.model)); }

TEST(StepScans, CountWindowsMicroBatchesAndSpans) {
  Config c = configuration();
  StepScans s = StepScans::of(c, Topology{});
  EXPECT_EQ(s.micro_batches, 4);
  EXPECT_EQ(s.windows, 1);
  EXPECT_EQ(s.wraps, 0);
  ASSERT_EQ(s.layers.size(), 4U);
  EXPECT_EQ(s.layers[0].state_bytes, 4 * 2 * 4 * 16 * 32);
  EXPECT_EQ(s.layers[0].carry_bytes, 4 * 2 * 4 * (16 * 32 + 16));
  EXPECT_EQ(s.layers[0].spans, 2);
  c.train.window = 50;
  EXPECT_EQ(StepScans::of(c, Topology{}).wraps, 4 * 2 * 2);
  c.data.order = "stream";
  EXPECT_EQ(StepScans::of(c, Topology{}).wraps, 4 * (2 * 2 + 1));
  c.data.order = DataConfig{}.order;
  c.train.window_mode = "truncated";
  s = StepScans::of(c, {4, 0, 2});
  EXPECT_EQ(s.windows, 3);
  EXPECT_EQ(s.shard_tokens, 25);
  EXPECT_EQ(s.micro_batches, 2);
  EXPECT_EQ(s.wraps, 2 * 2);
}

TEST(ScalingPlan, HandOverAndGradientsByHand) {
  Config c = configuration();
  const ScalingPlan host = plan_of(c);
  const int64_t bytes = 4 * ParameterTable(c.model).flat_numel();
  EXPECT_EQ(host.bucket_bytes, std::vector<int64_t>{bytes});  // under one bucket
  EXPECT_EQ(host.gradients_s(1), 0);
  // Three rounds of 50 us there and back; five sixths of the bytes twice at 1 GB/s.
  EXPECT_NEAR(host.gradients_s(6), 6 * 50e-6 + 2 * 5. / 6 * static_cast<double>(bytes) / 1e9, 1e-12);
  c.plan.sum_bandwidth = 4;
  EXPECT_NEAR(plan_of(c).gradients_s(2), 2 * 50e-6 + static_cast<double>(bytes) / 4e9, 1e-12);
  // Between nodes, no more than three ranks can send.
  EXPECT_NEAR(plan_of(c).gradients_s(6), 6 * 50e-6 + 2 * 5. / 6 * static_cast<double>(bytes) / 3e9, 1e-12);
  // Two ranks wait for each message: in each of 4 micro-batches, both ways, 4 messages and one advance of 2 spans.
  const double message = 50e-6 + 16384 / 1e9, advance = 5e-6 + 2 * 2 * 16384 / 10e9;
  EXPECT_NEAR(host.hand_over_s(2, ScanStrategy::kChain), 4 * 2 * (4 * message + advance), 1e-12);
  // In nodes of three ranks, on GPUs: four hops inside and one between, for which a rank waits in the other layers,
  // too.
  c.run.device = "cuda";
  c.plan.node_latency = 5, c.plan.node_bandwidth = 100;
  const double inside = 5e-6 + 16384 / 100e9;
  EXPECT_NEAR(plan_of(c).hand_over_s(6, ScanStrategy::kChain), 4 * 2 * (4 * inside + (1 + 3) * message + 5 * advance),
              1e-12);
  // Sent before it is awaited a message costs half its bytes; what meets another in a node, slices of 3 of 8 rows from
  // and to two others, twice.
  const auto by_nodes = [&] { return plan_of(c).hand_over_s(3, ScanStrategy::kHierarchical); };
  const double one_way = by_nodes();
  c.plan.early = 0.5, c.plan.both_ways = 2;
  EXPECT_NEAR(plan_of(c).hand_over_s(2, ScanStrategy::kChain), 4 * 2 * (inside + advance + 3 * (5e-6 + 16384 / 200e9)),
              1e-12);
  EXPECT_NEAR(by_nodes() - one_way, 4 * 2 * 4 * 2 * 3. / 8 * (16896 + 16384) / 100e9, 1e-12);
  c.run.device = "cpu";
  EXPECT_NEAR(plan_of(c).hand_over_s(2, ScanStrategy::kChain), 4 * 2 * (4 * inside + advance), 1e-12);
}

TEST(ScalingPlan, SumsHideUnderTheLastBackward) {
  Config c = configuration();
  c.run.device = "cuda";
  c.model.width = 1024;  // a layer has more than 32 MiB
  c.plan.latency = 0;
  const ScalingPlan p = plan_of(c);
  ASSERT_EQ(p.bucket_bytes.size(), 5U);  // the head with the last layer, two layers, the first one, the embedding
  int64_t sum = 0;
  for (const int64_t bytes : p.bucket_bytes) sum += bytes;
  EXPECT_EQ(sum, 4 * ParameterTable(c.model).flat_numel());
  EXPECT_EQ(p.bucket_bytes.back(), 4 * 256 * 1024);
  EXPECT_NEAR(p.last_backward_s, 0.5 / 4 * 2 / 3, 1e-12);
  EXPECT_NEAR(p.gradients_s(2), static_cast<double>(sum) / 1e9 - p.last_backward_s, 1e-12);
  c.plan.sum_exposed = 0.25;  // of what is hidden
  EXPECT_NEAR(plan_of(c).gradients_s(2), static_cast<double>(sum) / 1e9 - 0.75 * p.last_backward_s, 1e-12);
  ScalingPlan fast = p;
  fast.sum_bandwidth = 100e9;
  EXPECT_NEAR(fast.gradients_s(2), 4 * 256 * 1024 / 100e9, 1e-12);
  c.train.window = 64;  // two forwards, one of them twice, and two backwards: of 7 parts the last 2
  EXPECT_NEAR(plan_of(c).last_backward_s, 0.5 / 4 * 2 / 7, 1e-12);
}

TEST(ScalingPlan, ALineForEachNumberOfRanksAndStrategy) {
  Config c = configuration();
  const ScalingPlan p = plan_of(c);
  const std::string text = scaling_table(p, c);
  EXPECT_THAT(text, HasSubstr("0.5 s a step of one rank with a shard of 128 tokens"));
  const double step = 0.5 + p.hand_over_s(6, ScanStrategy::kAllGather) + p.gradients_s(6);
  EXPECT_TRUE(std::regex_search(
      text, std::regex(fmt::format("6 +6 +2 +768 +all_gather +[0-9.]+ +[0-9.]+ +{:.2f} +{:.1f}% +{:.0f}", 1e3 * step,
                                   50 / step, 8 * 768 / step))))
      << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("1 +1 +1 +128 +chain \\* +0.000 +0.000 +500.00 +100.0% +2048\n")))
      << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '*'), 1 + 3);  // the head and one for each number of ranks
  c.parallel.sp = 2;
  c.plan.ranks = "4,3";
  EXPECT_THAT(input_error([&] { scaling_table(plan_of(c), c); }),
              HasSubstr("plan.ranks = 4,3: must be multiples of parallel.sp = 2"));
}

TEST(ScalingPlan, WhatIsNotMeasuredIsRefused) {
  Config c = configuration();
  c.plan.step_s = 0;
  EXPECT_THAT(input_error([&] { plan_of(c); }), HasSubstr("plan.step_s = 0: must be above 0"));
  c = configuration();
  c.plan.bandwidth = 0;
  EXPECT_THAT(input_error([&] { plan_of(c); }), HasSubstr("plan.bandwidth = 0: must be above 0"));
  c = configuration();
  c.plan.compose_bandwidth = 0;
  EXPECT_THAT(input_error([&] { plan_of(c); }), HasSubstr("plan.compose_bandwidth = 0: must be above 0"));
}

/// Two groups of three ranks, of which one rank is late with everything: all see the same numbers and choose the same.
TEST(ScanChoice, IsTheSameOnAllRanks) {
  const Config c = configuration();
  const std::vector<std::unique_ptr<Group>> sp_groups[] = {make_local_groups(3), make_local_groups(3)};
  std::vector<ScanMachine> seen(6);
  run_ranks(6, [&](Group& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const Ranks ranks{{6, world.rank(), 3}, &world, sp_groups[rank / 3][rank % 3].get(), {}};
    seen[rank] = measure_scan(ranks, LayerDims::of(c.model, 0).attention(2, 1, DType::kFloat32), DType::kFloat32);
    const auto mine = static_cast<int64_t>(choose_scan(c, ranks, false));
    CHECK(all_reduce(world, mine, ReduceOp::kMax) == mine, "ranks choose differently");
  });
  for (const ScanMachine& m : seen) {
    EXPECT_GT(m.inside.latency_s, 0);
    EXPECT_TRUE(m.sends_wait);
    EXPECT_EQ(m.inside.latency_s, seen[0].inside.latency_s);
    EXPECT_EQ(m.inside.bandwidth, seen[0].inside.bandwidth);
    EXPECT_GT(m.compose.latency_s, 0);
    EXPECT_EQ(m.compose.latency_s, seen[0].compose.latency_s);
    EXPECT_EQ(m.compose.bandwidth, seen[0].compose.bandwidth);
  }
}

}  // namespace
}  // namespace baton
