// What a run takes of a rank's memory: the arena by group, exactly, and what a GPU holds beside it.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/topology.h"
#include "runtime/memory.h"

namespace baton {

using MemoryRows = std::vector<std::pair<std::string, int64_t>>;  // what, bytes

/// Beside the arena of a CUDA run: context and code, the workspace of the one stream that computes, and NCCL's buffers.
MemoryRows beside_arena(const Topology& topology);
int64_t total_bytes(const MemoryRows& rows);

/// The arena by group, as text; with `beside`, where it is not empty, and the sum of both.
std::string memory_table(const Arena& arena, const MemoryRows& beside);

/// Bytes of a rank with this window and sequence. Grows with the window while the number of windows is the same.
using BytesOf = std::function<int64_t(int64_t window, int64_t T_total)>;

/// The largest window that fits in `limit` bytes; above T_total, of a sequence that long. 0 where none fits.
int64_t largest_window(int64_t T_total, int64_t limit, const BytesOf& bytes_of);

}  // namespace baton
