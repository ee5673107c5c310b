// Where a rank computes: its device and stream, and the groups whose device tensors travel there.
#pragma once

#include <memory>

#include "comm/world.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"

namespace baton {

struct Compute {
  /// Collective. run_device as in configuration. Ranks of one sp_color share a sequence. On a CUDA device the groups
  /// are NCCL's (host tensors still go by MPI) and the state scan has a stream of its own; on the CPU they are MPI's.
  /// deadline_s: as in Group.
  Compute(const std::string& run_device, World& ranks, Group& world, int sp_color, double deadline_s);

  Stream stream;
  std::unique_ptr<cuda::OwnedStream> owned_stream;
  std::unique_ptr<Group> world, sp;
};

/// A copy of a host tensor on the stream's device.
OwnedTensor to_device(const Tensor& host, const Stream& stream);

}  // namespace baton
