// Training on a GPU.
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

}  // namespace
}  // namespace baton::test
