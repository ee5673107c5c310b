// Training on a GPU.
#include "tests/dump_runner.h"
#include "tests/kernel/cuda_test.h"
#include "tests/trainer_runner.h"
#include "tests/training_checks.h"

namespace baton::test {
namespace {

TEST(CudaTraining, StepsTakeNoMemory) {
  for (const DType dtype : gpu_dtypes()) {
    steps_take_no_memory(gpu_stream(), dtype, "permuted");
    const int64_t free = cuda::device_memory(0).free;
    steps_take_no_memory(gpu_stream(), dtype, "stream");
    EXPECT_EQ(cuda::device_memory(0).free, free) << "what libraries took, too";
  }
}

/// Losses of 3 steps in stream order, then the states they leave.
std::vector<double> streamed(Config config, const Stream& stream, DType dtype) {
  config.run.dtype = to_string(dtype);
  std::vector<double> all;
  run_trainers(config, 1, Trainer::Purpose::kTrain, stream,
               [&](Trainer& trainer, const Dataset& data, Group& world, auto&&) {
                 for (int64_t step = 1; step <= 3; ++step)
                   all.push_back(trainer.train_step(data, step, (step - 1) * config.train.batch, {}, {}).loss);
                 for (const OwnedTensor& layer : trainer.kept_state().gather(world, stream).layers)
                   for (double x : numbers(layer)) all.push_back(x);
               });
  return all;
}

TEST(CudaTraining, StreamOrderIsThatOfTheCpu) {
  const ScratchDir dir;
  ModelConfig tnl = small_model("tnl");
  tnl.lrpe_layers = "all";
  for (const ModelConfig& model : {small_model("gla"), tnl}) {
    Config config = trainer_config(model, dir.write("text", letters(4 * 3 * 150 + 1)));
    config.data.order = "stream";
    config.data.seq_len = 150;
    config.train.micro_batch = 2;
    config.train.window = 70;
    const std::vector<double> cpu = streamed(config, {}, kF64), gpu = streamed(config, gpu_stream(), kF32);
    EXPECT_LE(relative_difference(cpu, gpu), 1e-4) << model.family;  // as for dumps
    EXPECT_EQ(streamed(config, gpu_stream(), kF32), gpu);
  }
}

// Against the CPU's in float64. A dump of another place or layer is off by its whole size; what float32 itself costs is
// 2e-5 at most here (gradients of states, which cancel).
TEST(CudaTraining, DumpsAreThoseOfTheCpu) {
  std::vector<ModelConfig> models{small_model("tnl")};
  for (const char* mixer : {"none", "fixed", "scalar", "vector", "bilinear"})
    models.push_back(small_model("gla", mixer));
  for (const ModelConfig& config : models) {
    SCOPED_TRACE(config.family + " " + config.mixer);
    ModelRun run{.config = config, .T_total = 150, .window = 70, .starts = {40, 75}};
    const Dump cpu = dump_of(run);
    run.dtype = kF32;
    run.stream = gpu_stream();
    expect_same(cpu, dump_of(run), 1e-4);
  }
}

}  // namespace
}  // namespace baton::test
