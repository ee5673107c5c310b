// Maps by which the copy engine of a Hopper finds tiles.
#pragma once

#include <cuda.h>

#include "kernels/cuda/linear_attention_arguments.h"

namespace baton::cuda::attention {

// A box of activations or gates is a chunk's tokens by 64 channels of a head, one of chunks' states 64 x 64. What is
// bfloat16 comes as tiles lie in shared memory (linear_attention_tile.cuh), gates row by row; tokens beyond the shard
// are zeros.

/// Of the pass of the keys over spans.
struct PassMaps {
  CUtensorMap q, k, v, dout, gates, state, dstate;
};
/// Of walks that take activations as they are: those of Walk that are not null, and key channels' gates.
struct WalkMaps {
  CUtensorMap own, update, read, dk_read, gates;
};

/// Arguments as the launchers take them. cudaErrorNotSupported where the driver has no such maps.
cudaError_t make_pass_maps(const Arguments& a, PassMaps& maps);
cudaError_t make_walk_maps(const Arguments& a, const Walk& w, WalkMaps& maps);

}  // namespace baton::cuda::attention
