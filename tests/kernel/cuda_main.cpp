// main of the programs that test the CUDA backend. Without a device nothing is tested, and the exit code says so.
#include <gtest/gtest.h>

#include <cstdio>

#include "runtime/cuda.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (baton::cuda::num_devices() == 0) {
    std::puts("no CUDA device");
    return 77;  // SKIP_RETURN_CODE of the CTest entry
  }
  std::printf("on %s\n", baton::cuda::device_name(0).c_str());
  return RUN_ALL_TESTS();
}
