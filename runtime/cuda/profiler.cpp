// Ranges by NVTX, which does nothing until a profiler has loaded its part; its headers come with the CUDA toolkit.
#include "runtime/profiler.h"

#include <cuda_profiler_api.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include "runtime/cuda/check.h"

namespace baton {

ProfilerRange::ProfilerRange(const char* name) { nvtxRangePushA(name); }

ProfilerRange::ProfilerRange(const char* name, int64_t index) {
  nvtxRangePushA(fmt::format("{} {}", name, index).c_str());
}

ProfilerRange::~ProfilerRange() { nvtxRangePop(); }

void ProfilerRange::next(const char* name) {
  nvtxRangePop();
  nvtxRangePushA(name);
}

namespace cuda {

void start_profiler() { CUDA_CHECK(cudaProfilerStart()); }
void stop_profiler() { CUDA_CHECK(cudaProfilerStop()); }

}  // namespace cuda
}  // namespace baton
