// Training on a GPU.
#include "tests/dump_runner.h"
#include "tests/kernel/cuda_test.h"
#include "tests/training_checks.h"

namespace baton::test {
namespace {

TEST(CudaTraining, StepsTakeNoMemory) {
  for (const DType dtype : gpu_dtypes()) {
    steps_take_no_memory(gpu_stream(), dtype);
    const int64_t free = cuda::device_memory(0).free;
    steps_take_no_memory(gpu_stream(), dtype);
    EXPECT_EQ(cuda::device_memory(0).free, free) << "what libraries took, too";
  }
}

// Against the CPU's in float64: within 1e-5, or, since gradients of states cancel in some models, twice what float32
// costs on the CPU.
TEST(CudaTraining, DumpsAreThoseOfTheCpu) {
  std::vector<ModelConfig> models{small_model("tnl")};
  for (const char* mixer : {"none", "fixed", "scalar", "vector", "bilinear"})
    models.push_back(small_model("gla", mixer));
  for (const ModelConfig& config : models) {
    SCOPED_TRACE(config.family + " " + config.mixer);
    ModelRun run{.config = config, .T_total = 150, .window = 70, .starts = {40, 75}};
    const Dump cpu = dump_of(run);
    run.dtype = kF32;
    const Dump single = dump_of(run);
    run.stream = gpu_stream();
    const Dump gpu = dump_of(run);
    ASSERT_EQ(gpu.size(), cpu.size());
    for (const auto& [path, x] : cpu) {
      const double cost = relative_difference(x.values, single.at(path).values);
      EXPECT_LE(relative_difference(x.values, gpu.at(path).values), std::max(1e-5, 2 * cost)) << path;
    }
  }
}

}  // namespace
}  // namespace baton::test
