#include "model/schedule.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TrainConfig config_of(const std::string& schedule) {
  TrainConfig c;
  c.schedule = schedule;
  c.lr = 2e-3;
  c.lr_min = 1e-4;
  c.steps = 200;
  c.warmup = 20;
  c.decay_fraction = 0.25;
  return c;
}

constexpr const char* kSchedules[] = {"cosine", "linear", "constant", "wsd"};

TEST(Schedule, WarmsUpInAStraightLine) {
  for (const char* schedule : kSchedules) {
    const TrainConfig c = config_of(schedule);
    EXPECT_DOUBLE_EQ(learning_rate(c, 1), c.lr / 20) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(c, 10), c.lr / 2) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(c, 20), c.lr) << schedule;
  }
}

TEST(Schedule, EndsWhereItShould) {
  for (const char* schedule : kSchedules) {
    const TrainConfig c = config_of(schedule);
    const double end = std::string(schedule) == "constant" ? c.lr : c.lr_min;
    EXPECT_NEAR(learning_rate(c, 200), end, 1e-18) << schedule;
    EXPECT_NEAR(learning_rate(c, 500), end, 1e-18) << schedule << " past its last step";
  }
}

TEST(Schedule, NeverRisesAfterTheWarmUp) {
  for (const char* schedule : kSchedules) {
    const TrainConfig c = config_of(schedule);
    for (int64_t step = 21; step <= 200; ++step)
      ASSERT_LE(learning_rate(c, step), learning_rate(c, step - 1)) << schedule << " step " << step;
  }
}

TEST(Schedule, FormOfEachDecay) {
  const auto at = [](const char* schedule, int64_t step) { return learning_rate(config_of(schedule), step); };
  constexpr double kMiddle = (2e-3 + 1e-4) / 2;
  EXPECT_NEAR(at("cosine", 110), kMiddle, 1e-15);
  EXPECT_NEAR(at("linear", 110), kMiddle, 1e-15);
  EXPECT_NEAR(at("cosine", 65), 1e-4 + 1.9e-3 * 0.5 * (1 + std::sqrt(0.5)), 1e-15);
  EXPECT_NEAR(at("linear", 65), 1e-4 + 1.9e-3 * 0.75, 1e-15);
  EXPECT_DOUBLE_EQ(at("wsd", 150), 2e-3);  // the last quarter decays: steps 150 to 200
  EXPECT_LT(at("wsd", 151), 2e-3);
  EXPECT_NEAR(at("wsd", 175), kMiddle, 1e-15);
  EXPECT_DOUBLE_EQ(at("constant", 199), 2e-3);
}

TEST(Schedule, WithoutWarmUpItStartsBelowThePeakByOneStep) {
  TrainConfig c = config_of("linear");
  c.warmup = 0;
  EXPECT_NEAR(learning_rate(c, 1), 2e-3 - 1.9e-3 / 200, 1e-15);
  c.schedule = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(c, 1), 2e-3);
}

TEST(Schedule, WarmUpMayFillTheRun) {
  for (const char* schedule : kSchedules) {
    TrainConfig c = config_of(schedule);
    c.warmup = c.steps;
    EXPECT_DOUBLE_EQ(learning_rate(c, 200), c.lr) << schedule;
    c.warmup = 10 * c.steps;
    EXPECT_DOUBLE_EQ(learning_rate(c, 200), c.lr / 10) << schedule;
  }
}

}  // namespace
}  // namespace baton
