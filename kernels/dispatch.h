// The one dispatch of operations: on the first line of each public operation in cpu/,
//   BATON_ON_CUDA(stream, norm_forward(kind, x, ...));
// hands the call to the same function in namespace baton::cuda where the stream is a device's.
#pragma once

#include "runtime/error.h"
#include "runtime/stream.h"

#ifdef BATON_HAS_CUDA
#include "kernels/cuda/cuda.h"
#define BATON_ON_CUDA(stream, call) \
  if ((stream).device.type == ::baton::DeviceType::kCuda) return ::baton::cuda::call
#else
#define BATON_ON_CUDA(stream, call) \
  CHECK((stream).device.type == ::baton::DeviceType::kCpu, "this build has no CUDA backend")
#endif
