// Linear attention with all gate kinds, in stages, so that a rank can make its carry, hand over, then finish.
//
//   h_t = (exp(gk_t) exp(gv_t)^T) * h_{t-1} + k_t^T v_t          o_t = scale * q_t h_t
//
// (Gated Linear Attention, arXiv 2312.06635, section 4; Lightning Attention-2, arXiv 2401.04658, for fixed decays.)
//
// Sizes: B batch, T tokens of this shard, H heads, K key dim, V value dim, N = ceil(T / C) chunks of C tokens.
// Forward is carry_forward, advance_forward, output_forward; backward is carry_backward, advance_backward,
// attention_gradients. Only the two `advance` stages need the state of another rank; each applies the shard's carry
// chunk by chunk, so shards that end on chunk boundaries give the same bits on any number of ranks.
// A document start forgets the state: it acts as a log gate of -inf on every channel of its token.
// T may be 0: then ht = h0 and dh0 = dht. Errors: shapes and dtypes are checked on every call (CHECK).
#pragma once

#include "runtime/stream.h"

namespace baton {

enum class GateKind { kNone, kFixed, kScalar, kVector, kBilinear };

/// "none", "fixed", ...; parse_gate_kind throws an input error on another word.
const char* to_string(GateKind kind);
GateKind parse_gate_kind(const std::string& word);

/// Tokens a chunk. A constant, since the bits of a result depend on it.
inline constexpr int64_t kChunk = 64;

struct AttentionShape {
  int64_t B = 0, T = 0, H = 0, K = 0, V = 0;
  GateKind gate = GateKind::kNone;
  int64_t num_chunks() const { return (T + kChunk - 1) / kChunk; }
  Shape state() const { return {B, H, K, V}; }
  /// Of AttentionChunks::state. One state more than chunks: state c enters chunk c, state N leaves the shard.
  Shape chunk_states() const { return {B, H, num_chunks() + 1, K, V}; }
};

/// Views owned by the caller, all of one floating dtype but `starts`.
struct AttentionInputs {
  AttentionShape shape;
  Tensor q, k;    // [B, T, H, K]
  Tensor v;       // [B, T, H, V]
  Tensor gk;      // log gates <= 0. vector, bilinear [B, T, H, K]; scalar [B, T, H]; fixed [H]; none: undefined
  Tensor gv;      // bilinear [B, T, H, V]; else undefined
  Tensor starts;  // uint8 [B, T], 1 where a document starts; undefined: nowhere
  double scale = 1.0;
};

/// Scratch of one call, owned by the caller; a model's layers share one pair (forward and gradient).
/// Forward: state c is the state entering chunk c, state N is ht. Gradient: state c is the gradient arriving at the
/// start of chunk c (of the state entering it), state N is dht. Before `advance`, the states are the chunks' own parts.
struct AttentionChunks {
  Tensor state;    // [B, H, N + 1, K, V]
  Tensor decay_k;  // [B, H, N, K]: decay of a whole chunk on the key channels; zero where a document starts inside
  Tensor decay_v;  // [B, H, N, V]: the same on the value channels; bilinear only, else undefined
};

/// Makes each chunk's carry: decays, and the state it adds: sum over its tokens of (k_t e_t)^T (v_t ev_t).
void carry_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Stream& stream);

/// Composes: state_0 = h0, state_{c+1} = decay_c * state_c + S_c, ht = state_N. h0, ht [B, H, K, V]; may not alias.
void advance_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                     const Stream& stream);

/// o [B, T, H, V], after advance_forward.
void output_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& o, const Stream& stream);

/// Makes each chunk's own part of the state gradient: sum over its tokens of scale (q_t c_t)^T (dout_t cv_t).
/// `chunks` are the forward's (for decays); dout [B, T, H, V].
void carry_backward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& dout,
                    const AttentionChunks& dchunks, const Stream& stream);

/// Composes from the right: dstate_N = dht, dstate_c = decay_c * dstate_{c+1} + dS_c, dh0 = dstate_0.
void advance_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                      const Tensor& dht, const Tensor& dh0, const Stream& stream);

/// Outputs of attention_gradients, overwritten.
struct AttentionGradients {
  Tensor dq, dk;  // [B, T, H, K]
  Tensor dv;      // [B, T, H, V]
  Tensor dgk;  // as gk for scalar (summed over K), vector and bilinear; else undefined (a fixed decay learns nothing)
  Tensor dgv;  // as gv, bilinear only
};

/// After advance_forward and advance_backward. Gate gradients in closed form, anchored at each chunk's end:
///   dgk_t = rowsum_v(h_c * dh_c) + sum over s >= t in the chunk and t's document of (q_s * dq_s - k_s * dk_s),
/// with a token's product with itself left out of both terms; exactly 0 at a document start and where the gate is -inf.
/// For gv: colsum_k(h_c * dh_c) + sum of (o_s * dout_s - v_s * dv_s).
void attention_gradients(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                         const Tensor& dout, const AttentionGradients& out, const Stream& stream);

/// For dumps: the state between tokens `token` - 1 and `token` of the shard, 0 <= token <= T, after advance_forward;
/// and its gradient, after advance_backward. h, dh [B, H, K, V].
void state_at(const AttentionInputs& in, const AttentionChunks& chunks, int64_t token, const Tensor& h,
              const Stream& stream);
void state_gradient_at(const AttentionInputs& in, const AttentionChunks& dchunks, const Tensor& dout, int64_t token,
                       const Tensor& dh, const Stream& stream);

}  // namespace baton
