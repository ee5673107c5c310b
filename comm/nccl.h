// NCCL behind Group: device tensors go through NCCL, host tensors through the host transport it is given.
//
// Every group has a communicator and a stream of its own. Calls are issued by one host thread, in one order on every
// rank. Communicators are non-blocking: no call waits without a deadline, and asynchronous errors are looked at while
// waiting. A failure aborts every communicator of the process, since a kernel that waits for a lost rank would hold the
// device's memory, and then throws; an abort that takes longer than 5 s ends the process with exit code 4.
//
// In a graph capture: connections are made when the group is made, those of a collective at its first call, so one
// eager run must come first. All pending operations must have been waited for before the capture ends. In a replay the
// deadline is that of synchronize.
#pragma once

#include <memory>
#include <string>

#include "comm/group.h"

namespace baton {

struct NcclOptions {
  std::string name = "group";  // in messages and in NCCL's own log
  bool high_priority = false;  // for what others wait for: the state scan
  int max_ctas = 0;            // thread blocks that an operation may hold while it waits; 0: as many as NCCL likes
};

/// A receive holds its thread blocks while it waits, and what is beside it must do without: no more than are worth it.
/// Between two H200, 2 MiB take 52 us with 4, 38 with 8, 26 with 16, 22 with 32 (2026-11).
inline NcclOptions scan_options() { return {"state scan", true, 32}; }
inline NcclOptions gradient_options() { return {"gradients", false, 0}; }

/// Collective over `host`, whose ranks must each have a device of their own, current in this thread. Connects
/// neighbours, and the first rank with the last, in both directions. Throws in a build without CUDA.
std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Group> host, Device device, const NcclOptions& options);

/// "2.28.9" of the library that is loaded; empty in a build without it.
std::string nccl_version();

/// Aborts every NCCL communicator of this process, within 5 s or the process ends. Where an exception is in flight, the
/// release of device memory does so first, since it would wait for operations that may never end. `why` is said where
/// the process ends.
void abort_nccl_groups(const char* why = "") noexcept;

}  // namespace baton
