// baton replay on simulated ranks: golden answers of the operator and of both models, every tensor, both dtypes.
#include <gtest/gtest.h>

#include "launch/replay.h"
#include "tests/run_ranks.h"

namespace baton {
namespace {

ExitCode replay_on(int num_ranks, const ReplayOptions& options) {
  ExitCode code = ExitCode::kTransport;
  run_ranks(num_ranks, [&](Group& group) {
    group.set_ranks_per_node(num_ranks % 4 == 0 ? 4 : num_ranks);  // of hierarchical
    const ExitCode mine = replay(options, group, Stream{});
    if (group.rank() == 0) code = mine;
  });
  return code;
}

TEST(Replay, GoldenAnswersPass) {
  for (const char* file : {"operator", "gla", "tnl"})
    for (const DType dtype : {DType::kFloat32, DType::kFloat64})
      for (int ranks : {1, 2, 3, 4, 5, 8}) {
        SCOPED_TRACE(fmt::format("{} {} on {}", file, to_string(dtype), ranks));
        const std::string path = fmt::format("{}/tests/data/{}.h5", BATON_SOURCE_DIR, file);
        EXPECT_EQ(replay_on(ranks, {.file = path, .dtype = dtype, .out = ""}), ExitCode::kDone);
      }
}

TEST(Replay, GoldenAnswersPassByEveryStrategy) {
  for (const char* file : {"operator", "gla", "tnl"})
    for (const DType dtype : {DType::kFloat32, DType::kFloat64})
      for (const ScanStrategy scan : {ScanStrategy::kDoubling, ScanStrategy::kAllGather, ScanStrategy::kHierarchical})
        for (int ranks : {3, 8, 17}) {
          SCOPED_TRACE(fmt::format("{} {} by {} on {}", file, to_string(dtype), to_string(scan), ranks));
          const std::string path = fmt::format("{}/tests/data/{}.h5", BATON_SOURCE_DIR, file);
          EXPECT_EQ(replay_on(ranks, {.file = path, .dtype = dtype, .scan = scan, .out = ""}), ExitCode::kDone);
        }
}

TEST(Replay, AnErrorOverToleranceIsAFailedComparison) {
  const std::string path = std::string(BATON_SOURCE_DIR) + "/tests/data/gla.h5";
  EXPECT_EQ(replay_on(2, {.file = path, .dtype = DType::kFloat32, .tolerance = 1e-12, .out = ""}),
            ExitCode::kComparison);
}

}  // namespace
}  // namespace baton
