// Stream order: a row that is read sequence by sequence, one a step, against the row read as one sequence.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/model_runner.h"
#include "tests/trainer_runner.h"

namespace baton::test {
namespace {

constexpr int64_t kRows = 4, kSteps = 3, kTokens = 50;  // of a sequence
constexpr double kBound = 1e-12;

/// A text of kRows stretches of kSteps sequences, in one of which a document ends with the sequence.
std::string write_text(const ScratchDir& dir) {
  std::string text = letters(kRows * kSteps * kTokens + 1);
  text[kSteps * kTokens + 2 * kTokens - 1] = '\n';
  return dir.write("text", text);
}

struct Layout {
  int num_ranks = 1, sp = 1;
  int64_t micro_batch = 0, window = 0;
  const char* scan = "chain";
  const char* mode = "exact";
};
constexpr Layout kLayouts[] = {{.num_ranks = 2, .sp = 2},
                               {.num_ranks = 3, .sp = 3},
                               {.num_ranks = 3, .sp = 3, .scan = "doubling"},
                               {.num_ranks = 5, .sp = 5, .window = 7},
                               {.num_ranks = 2, .sp = 1, .micro_batch = 1},
                               {.num_ranks = 4, .sp = 2, .micro_batch = 1, .window = 20},
                               {.num_ranks = 4, .sp = 2, .window = 20, .mode = "truncated"},
                               {.num_ranks = 2, .sp = 2, .micro_batch = 2, .scan = "all_gather"}};

std::string name_of(const Layout& l) {
  return fmt::format("{} ranks, sp {}, micro-batch {}, window {} {}, {}", l.num_ranks, l.sp, l.micro_batch, l.window,
                     l.mode, l.scan);
}

std::vector<ModelConfig> models() {
  ModelConfig tnl = small_model("tnl");
  tnl.lrpe_layers = "all";
  return {small_model("gla"), small_model("gla", "bilinear"), small_model("gla", "none"), tnl};
}

Config stream_config(const ModelConfig& model, const std::string& path, const Layout& l = {}) {
  Config config = trainer_config(model, path);
  config.data.order = "stream";
  config.data.seq_len = kTokens;
  config.train.micro_batch = l.micro_batch;
  config.train.window = l.window;
  config.train.window_mode = l.mode;
  config.parallel.sp = l.sp;
  config.parallel.scan = l.scan;
  return config;
}

/// Every row as one sequence, without anything of the stream order.
Config whole_config(const ModelConfig& model, const std::string& path) {
  Config config = trainer_config(model, path);
  config.data.seq_len = kSteps * kTokens;
  config.train.window = kTokens;
  config.train.window_mode = "truncated";
  return config;
}

StepResult step_of(Trainer& trainer, const Dataset& data, int64_t step, const ShouldAbandon& should_abandon = {}) {
  return trainer.train_step(data, step, (step - 1) * kRows, should_abandon, {});
}

/// All numbers of the kept state, and the positions.
std::vector<std::vector<double>> kept(Trainer& trainer, Group& world) {
  const KeptState::Rows rows = trainer.kept_state().gather(world, trainer.stream());
  std::vector<std::vector<double>> all;
  for (const OwnedTensor& layer : rows.layers) all.push_back(numbers(layer));
  const int64_t* positions = rows.positions.tensor.as<int64_t>();
  all.emplace_back(positions, positions + kRows);
  return all;
}

/// Per token, [kRows, kSteps kTokens]: each row read at once by an evaluation.
std::vector<double> losses_of_whole_rows(const ModelConfig& model, const std::string& path) {
  Config config = whole_config(model, path);
  config.train.window = 0;
  std::vector<double> losses;
  run_trainers(config, 1, Trainer::Purpose::kEvaluate, {}, [&](Trainer& trainer, const Dataset& data, auto&&...) {
    trainer.evaluate(data, {});
    losses = numbers(trainer.model().losses());
  });
  return losses;
}

TEST(Stream, LossesOfTokensAreThoseOfOneSequence) {
  const ScratchDir dir;
  const std::string path = write_text(dir);
  for (const ModelConfig& model : models()) {
    const std::vector<double> whole = losses_of_whole_rows(model, path);
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} {} on {} ranks", model.family, model.mixer, ranks));
      std::vector<double> losses(whole.size());
      std::mutex mutex;
      const auto train = [&](Trainer& trainer, const Dataset& data, Group& world, auto&&) {
        for (int64_t step = 0; step < kSteps; ++step) {
          step_of(trainer, data, step + 1);
          const std::vector<double> mine = numbers(trainer.model().losses());
          const Range shard = shard_of(kTokens, world.size(), world.rank());
          const std::lock_guard lock(mutex);
          for (int64_t row = 0; row < kRows; ++row)
            std::copy_n(&mine[row * shard.size()], shard.size(),
                        &losses[(row * kSteps + step) * kTokens + shard.first]);
        }
      };
      run_trainers(stream_config(model, path, {.sp = ranks}), ranks, Trainer::Purpose::kTrain, {}, train);
      EXPECT_LE(relative_difference(whole, losses), kBound);
    }
  }
}

struct Sum {
  double loss = 0;
  std::vector<double> gradients;
  std::vector<std::vector<double>> kept;
};

/// Means over `steps` steps, and what they leave.
Sum mean_of_steps(const Config& config, int num_ranks, int64_t steps) {
  Sum sum;
  run_trainers(config, num_ranks, Trainer::Purpose::kTrain, {},
               [&](Trainer& trainer, const Dataset& data, Group& world, auto&&) {
                 double tokens = 0;
                 for (int64_t step = 1; step <= steps; ++step) {
                   const StepResult result = step_of(trainer, data, step);
                   if (world.rank() > 0) continue;
                   const std::vector<double> gradients = numbers(trainer.model().parameters().gradients);
                   sum.gradients.resize(gradients.size());
                   for (size_t i = 0; i < gradients.size(); ++i)
                     sum.gradients[i] += gradients[i] / static_cast<double>(steps);
                   sum.loss += result.loss * static_cast<double>(result.tokens);
                   tokens += static_cast<double>(result.tokens);
                 }
                 if (world.rank() == 0) sum.loss /= tokens;
                 if (config.in_stream_order()) {
                   const auto all = kept(trainer, world);
                   if (world.rank() == 0) sum.kept = all;
                 }
               });
  return sum;
}

TEST(Stream, GradientsAreThoseOfTruncatedWindows) {
  const ScratchDir dir;
  const std::string path = write_text(dir);
  for (const ModelConfig& model : models()) {
    const Sum whole = mean_of_steps(whole_config(model, path), 1, 1);
    const Sum one = mean_of_steps(stream_config(model, path), 1, kSteps);
    EXPECT_LE(relative_difference(whole.gradients, one.gradients), kBound);
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(fmt::format("{} {}: {}", model.family, model.mixer, name_of(layout)));
      const Sum mean = mean_of_steps(stream_config(model, path, layout), layout.num_ranks, kSteps);
      EXPECT_NEAR(mean.loss, whole.loss, kBound * whole.loss);
      ASSERT_EQ(mean.kept.size(), one.kept.size());
      for (size_t l = 0; l < one.kept.size(); ++l)
        EXPECT_LE(relative_difference(one.kept[l], mean.kept[l]), kBound) << "layer " << l;
      if (std::string(layout.mode) == "exact") {
        EXPECT_LE(relative_difference(whole.gradients, mean.gradients), kBound);
      }
    }
  }
}

// At a learning rate of zero a second round over the text is the first one, to the bit.
TEST(Stream, RowsStartAnewAtTheEndOfTheirStretch) {
  const ScratchDir dir;
  const std::string path = write_text(dir);
  run_trainers(stream_config(small_model("tnl"), path, {.sp = 2}), 2, Trainer::Purpose::kTrain, {},
               [&](Trainer& trainer, const Dataset& data, Group& world, auto&&) {
                 std::vector<double> losses;
                 std::vector<std::vector<std::vector<double>>> states;
                 for (int64_t step = 1; step <= 2 * kSteps; ++step) {
                   losses.push_back(step_of(trainer, data, step).loss);
                   states.push_back(kept(trainer, world));
                 }
                 for (int64_t step = 0; step < kSteps; ++step) {
                   EXPECT_EQ(losses[step], losses[step + kSteps]);
                   EXPECT_EQ(states[step], states[step + kSteps]);
                 }
               });
}

TEST(Stream, ADroppedStepLeavesNoTrace) {
  const ScratchDir dir;
  const std::string path = write_text(dir);
  for (const int64_t dropped : {2, 3}) {  // looks at the request: between windows, between micro-batches
    const Config config = stream_config(small_model("gla"), path, {.sp = 2, .micro_batch = 2, .window = 30});
    run_trainers(config, 2, Trainer::Purpose::kTrain, {},
                 [&](Trainer& trainer, const Dataset& data, Group& world, auto&&) {
                   step_of(trainer, data, 1);
                   const auto before = kept(trainer, world);
                   int64_t looks = 0;
                   EXPECT_TRUE(step_of(trainer, data, 2, [&] { return ++looks == dropped; }).abandoned);
                   EXPECT_EQ(kept(trainer, world), before);
                   const double loss = step_of(trainer, data, 2).loss;
                   const auto after = kept(trainer, world);
                   EXPECT_NE(after, before);
                   // As if it had not been.
                   trainer.kept_state().clear(trainer.stream());
                   step_of(trainer, data, 1);
                   EXPECT_EQ(step_of(trainer, data, 2).loss, loss);
                   EXPECT_EQ(kept(trainer, world), after);
                 });
  }
}

// The state of one layout, set on another, goes on there.
TEST(Stream, AnyLayoutGoesOnWithTheStateOfAnother) {
  const ScratchDir dir;
  const std::string path = write_text(dir);
  const ModelConfig model = small_model("tnl");
  KeptState::Rows rows;
  double loss = 0;
  const Layout from{.num_ranks = 4, .sp = 2, .micro_batch = 1};
  run_trainers(stream_config(model, path, from), from.num_ranks, Trainer::Purpose::kTrain, {},
               [&](Trainer& trainer, const Dataset& data, Group& world, auto&&) {
                 for (int64_t step = 1; step < kSteps; ++step) step_of(trainer, data, step);
                 KeptState::Rows gathered = trainer.kept_state().gather(world, {});
                 const double last = step_of(trainer, data, kSteps).loss;
                 if (world.rank() > 0) return;
                 rows = std::move(gathered);
                 loss = last;
               });
  for (const Layout& layout : {from, Layout{}, Layout{.num_ranks = 3, .sp = 3}, Layout{.num_ranks = 2, .sp = 1}}) {
    SCOPED_TRACE(name_of(layout));
    run_trainers(stream_config(model, path, layout), layout.num_ranks, Trainer::Purpose::kTrain, {},
                 [&](Trainer& trainer, const Dataset& data, Group&, auto&&) {
                   trainer.kept_state().set(rows, {});
                   const double here = step_of(trainer, data, kSteps).loss;
                   if (layout.num_ranks == from.num_ranks) {
                     EXPECT_EQ(here, loss);
                   } else {
                     EXPECT_NEAR(here, loss, kBound * loss);
                   }
                 });
  }
}

// From the last rank of each sp_group to the first: 8 B H K V bytes a layer in float64.
TEST(Stream, BytesAreThoseOfTheFormula) {
  const ScratchDir dir;
  const ModelConfig model = small_model("gla");
  const LayerDims d = LayerDims::of(model, 0);
  for (const int sp : {1, 2, 4}) {
    std::mutex mutex;
    int64_t bytes = 0;
    run_trainers(stream_config(model, write_text(dir), {.sp = sp, .micro_batch = 1}), 4, Trainer::Purpose::kTrain, {},
                 [&](Trainer& trainer, const Dataset& data, auto&&...) {
                   step_of(trainer, data, 1);
                   const std::lock_guard lock(mutex);
                   bytes += trainer.scan().wrapped_bytes();
                 });
    EXPECT_EQ(bytes, sp == 1 ? 0 : model.layers * 8 * kRows * d.H * d.K * d.V);
  }
}

}  // namespace
}  // namespace baton::test
