// Gradients summed in buckets under backward: the bits of one sum after it, and begun before it ends.
#include "model/gradient_reduction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tests/model_runner.h"

namespace baton::test {
namespace {

constexpr int64_t kSmall = 4096;  // bytes; a layer of small_model has some 40 KiB in double

std::vector<ModelConfig> models() {
  std::vector<ModelConfig> models{small_model("gla"), small_model("tnl"), small_model("gla", "bilinear")};
  models[2].tie_embeddings = true;
  return models;
}

TEST(GradientReduction, SameBitsAsOneSum) {
  for (const ModelConfig& config : models())
    for (const int64_t window : {0, 70})
      for (const bool exact : {true, false})
        for (const int64_t bucket_bytes : {int64_t{1}, kSmall, GradientReduction::kBucketBytes}) {
          SCOPED_TRACE(fmt::format("{} window {} buckets of {}", config.family, window, bucket_bytes));
          ModelRun run{.config = config, .dtype = DType::kFloat32, .window = window, .exact = exact, .num_ranks = 3};
          const ModelResult whole = run_model(run);
          run.bucket_bytes = bucket_bytes;
          EXPECT_EQ(run_model(run).gradients, whole.gradients);
        }
}

TEST(GradientReduction, BeginsUnderTheLastBackwardAndNotBefore) {
  std::mutex mutex;
  std::vector<int64_t> bytes;  // summed when backward reaches a layer, on the first rank
  ModelRun run{.config = small_model("gla"), .window = 75, .num_ranks = 2, .bucket_bytes = kSmall};
  run.probe = [&](Group& group) -> Probe {
    return [&](const Probed&) {
      const std::lock_guard lock(mutex);
      if (group.rank() == 0) bytes.push_back(group.traffic().collective_bytes);
    };
  };
  run_model(run);
  const ParameterTable table(run.config);
  const int64_t from_layer_1 = (table.flat_numel() - table.first_element("model.layers.1.")) * 8;
  EXPECT_EQ(bytes, (std::vector<int64_t>{0, 0, 0, from_layer_1}));  // layers 1, 0 of window 1, then of window 0
}

TEST(GradientReduction, BucketsFollowFromTheirSize) {
  run_ranks(2, [](Group& group) {
    OwnedTensor x({100}, DType::kFloat32);
    std::fill_n(x.tensor.as<float>(), 100, static_cast<float>(group.rank() + 1));
    Arena arena(Device{}, 4096);
    GradientReduction reduction(group, x, 5, arena, 80);
    reduction.start({});
    std::vector<int64_t> sums;
    for (const int64_t first : {90, 70, 60, 40, 0}) {
      if (group.rank() == 1 && first == 60) x.tensor.as<float>()[65] = INFINITY;
      reduction.final_from(first, {});
      sums.push_back(group.traffic().collective_bytes);
    }
    reduction.finish();
    EXPECT_EQ(sums, (std::vector<int64_t>{0, 120, 120, 240, 400}));  // of 80 bytes and more, and what is left
    for (int i = 0; i < 100; ++i) EXPECT_EQ(x.tensor.as<float>()[i], i == 65 ? INFINITY : 3.0F);
    // Every rank sees the infinity; the one that gave it knows.
    EXPECT_EQ(reduction.not_finite({}), std::vector<Range>(group.rank() == 1 ? 1 : 0, Range{40, 70}));
    reduction.start({});
    EXPECT_THROW(reduction.finish(), Error);
    reduction.final_from(0, {});
    EXPECT_EQ(reduction.not_finite({}), (std::vector{Range{0, 100}}));
  });
}

}  // namespace
}  // namespace baton::test
