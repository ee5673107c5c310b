// Ranges by NVTX, which does nothing until a profiler has loaded its part; its headers come with the CUDA toolkit.
#include "runtime/profiler.h"

#include <cuda_profiler_api.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include "runtime/cuda/check.h"

namespace baton::cuda {

void push_range(const char* name, int64_t index) {
  nvtxRangePushA(index < 0 ? name : fmt::format("{} {}", name, index).c_str());
}

void pop_range() { nvtxRangePop(); }

void start_profiler() { CUDA_CHECK(cudaProfilerStart()); }
void stop_profiler() { CUDA_CHECK(cudaProfilerStop()); }

}  // namespace baton::cuda
