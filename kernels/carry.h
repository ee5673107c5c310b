// Carries: what a stretch of tokens does to the state that enters it,
//   h -> (decay_k decay_v^T) * h + state,
// and their composition: (G2, S2) after (G1, S1) is (G2 G1, G2 * S1 + S2), forward as for gradients reversed.
// Decays are products of decays of spans, never over 1; a document start makes them exactly 0.
#pragma once

#include "kernels/linear_attention.h"

namespace baton {

/// Views owned by the caller, of the dtype of states.
struct Carry {
  Tensor state;    // [B, H, K, V]
  Tensor decay_k;  // [B, H, K]
  Tensor decay_v;  // [B, H, V], bilinear; else undefined
};

/// The carry of a whole shard from those of its spans: between carry_forward (carry_backward) and advance, which finds
/// the spans' as they were. Identity where T is 0. carry.decay_k may be undefined: then no decays are written.
void shard_carry_forward(const AttentionShape& shape, const AttentionChunks& chunks, const Carry& carry,
                         const Stream& stream);
void shard_carry_backward(const AttentionShape& shape, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                          const Carry& carry, const Stream& stream);

/// out = second after first; out may be either of them. first's and out's decays may be undefined: then only the state
/// is composed.
void compose(const Carry& first, const Carry& second, const Carry& out, const Stream& stream);

/// Decays that every rank can compute: those of shards [first, last) together, exp(log_decay * tokens) on every channel
/// of decay_k [B, H, K], 0 in rows where a document starts. tokens: int64 [P, B], of each rank's shard, -1 where a
/// document starts in it. log_decay [H] <= 0; undefined: 0.
void fixed_decay(const Tensor& log_decay, const Tensor& tokens, int64_t first, int64_t last, const Tensor& decay_k,
                 const Stream& stream);

}  // namespace baton
