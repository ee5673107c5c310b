// Cutting whole tensors along the sequence into the ranks' shards, and gathering shards back.
#pragma once

#include "comm/group.h"
#include "comm/topology.h"
#include "runtime/memory.h"

namespace baton {

/// Tokens [range) of a host tensor [B, T, ...].
OwnedTensor cut_tokens(const Tensor& whole, Range range);

/// Writes a shard [B, T_r, ...] into its place in a whole [B, T, ...]; host tensors.
void place_tokens(const Tensor& shard, Range range, const Tensor& whole);

/// Collective: the shards [B, T_r, ...] of all ranks, joined to [B, T, ...] on rank 0; empty elsewhere.
OwnedTensor gather_tokens(Group& group, const Tensor& shard, int64_t T, const Stream& stream);

}  // namespace baton
