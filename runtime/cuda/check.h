// The check around every call of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/error.h"

/// CUDA_CHECK(cudaMalloc(&p, n)): throws Error with the call and CUDA's own words.
#define CUDA_CHECK(call)                                                                                           \
  do {                                                                                                             \
    const cudaError_t cuda_status = (call);                                                                        \
    if (cuda_status != cudaSuccess) [[unlikely]]                                                                   \
      throw ::baton::Error(::baton::ExitCode::kTransport, std::string("CUDA: ") + cudaGetErrorString(cuda_status), \
                           #call, __FILE__, __LINE__);                                                             \
  } while (false)
