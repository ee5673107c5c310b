#include "tests/training_checks.h"

#include <gtest/gtest.h>

#include "model/trainer.h"
#include "runtime/rng.h"
#include "tests/model_runner.h"
#include "tests/unit/scratch_dir.h"

namespace baton::test {
namespace {

Config small_config(const ScratchDir& dir, DType dtype) {
  std::string text;
  for (uint64_t i = 0; i < 20000; ++i) text += static_cast<char>('a' + random_bits(5, 0, i) % 26);
  Config config;
  config.run.dtype = to_string(dtype);
  config.model = small_model("gla");
  config.model.vocab = 256;
  config.data.train = config.data.val = dir.write("text", text);
  config.data.seq_len = 150;
  config.train.batch = 4;
  config.train.micro_batch = 2;
  config.train.window = 100;
  config.eval.tokens = 1000;
  return config;
}

}  // namespace

void steps_take_no_memory(const Stream& stream, DType dtype, const std::string& order) {
  const ScratchDir dir;
  Config config = small_config(dir, dtype);
  config.data.order = order;
  const Dataset data(config.data, "data.train", config.data.train);
  const auto world = make_local_groups(1), sp = make_local_groups(1);
  const Ranks ranks{Topology::make(1, 0, 1), world[0].get(), sp[0].get(), stream};
  const Trainer plan(config, Trainer::Purpose::kTrain, ranks, true);
  const int64_t at_start = num_allocations();
  Trainer trainer(config, Trainer::Purpose::kTrain, ranks, false);
  EXPECT_EQ(trainer.arena().bytes_by_group(), plan.arena().bytes_by_group());
  if (stream.device.type == DeviceType::kCpu) {  // on a GPU there are the host's copies of batch and losses, too
    EXPECT_EQ(num_allocations(), at_start + 1);
  }
  int64_t after_first = 0;
  for (int64_t step = 1; step <= 3; ++step) {
    const StepResult result = trainer.train_step(data, step, (step - 1) * config.train.batch, {}, {});
    EXPECT_EQ(result.tokens, config.train.batch * config.data.seq_len);
    EXPECT_GT(trainer.evaluate(data, {}).loss, 0);
    if (step == 1) after_first = num_allocations();
  }
  EXPECT_EQ(num_allocations(), after_first);
}

}  // namespace baton::test
