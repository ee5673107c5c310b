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
