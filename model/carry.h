// A layer's carry as a scan's message: the state [B, H, K, V], then the decays [B, H, K] and, of a bilinear gate,
// [B, H, V]. Of a gate that learns nothing (none, fixed) the state alone: decays follow from tokens and document
// starts, which all ranks tell each other once a window.
#pragma once

#include "comm/state_scan.h"
#include "kernels/carry.h"

namespace baton {

/// Whether decays depend on the tokens, so that only their own rank knows them.
bool has_learned_decay(GateKind gate);

/// Numbers of a layer's message.
int64_t carry_numel(const AttentionShape& shape);

/// What is known of decays without a message; tokens and scratch where messages hold none.
struct FixedDecays {
  Tensor tokens;         // int64 [P, B] of the window, see gather_tokens_of_shards
  Tensor scratch;        // [B, H, K]
  bool forgets = false;  // nothing passes this shard: starts_in_every_row, or decays_forget
};

/// What the shard does to the state, and to its gradient. All arguments must live until the scan is finished.
ShardCarry forward_carry(const AttentionInputs& in, const AttentionChunks& chunks, const FixedDecays& fixed,
                         const Stream& stream);
ShardCarry backward_carry(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                          const FixedDecays& fixed, const Stream& stream);

/// Whether a document starts in every row of a shard, so that no state passes it. starts: uint8 [B, T], on the host.
bool starts_in_every_row(const Tensor& starts);

/// Whether fixed decays, the weakest of which is log_decay a token, forget what enters a shard: exactly, where that of
/// its first span is 0 in numbers of this dtype; or but for a part of at most early_send, 0 for none. Then no element
/// of what enters the next rank is off by more than early_send times the element that entered this one.
bool decays_forget(const AttentionShape& shape, DType number, double log_decay, double early_send);

/// Collective, on the host: `all`, int64 [P, B], becomes the tokens of each rank's shard of this window by row, or -1
/// where a document starts in it. starts: this shard's, uint8 [B, T].
void gather_tokens_of_shards(const Tensor& starts, Group& group, const Tensor& all);

}  // namespace baton
