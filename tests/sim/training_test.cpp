// Training on the CPU; cuda_training_test.cpp is the same on a GPU.
#include <gtest/gtest.h>

#include "tests/training_checks.h"

namespace baton::test {
namespace {

TEST(Training, StepsTakeNoMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64})
    for (const char* order : {"permuted", "stream"}) steps_take_no_memory({}, dtype, order);
}

}  // namespace
}  // namespace baton::test
