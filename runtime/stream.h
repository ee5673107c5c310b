// Stream: the order in which a device runs what it is given. The CPU runs everything at once, so its stream is empty.
#pragma once

#include "runtime/tensor.h"

namespace baton {

/// A view of a device queue: on CUDA `handle` is a cudaStream_t, on the CPU it is null. Always the last argument.
struct Stream {
  Device device;
  void* handle = nullptr;
};

/// Waits until everything given to the stream has run. Nothing to do on the CPU.
void synchronize(const Stream& stream);

}  // namespace baton
