// Linear attention with all gate kinds, in stages, so that a rank can make its carry, hand over, then finish.
//
//   h_t = (exp(gk_t) exp(gv_t)^T) * h_{t-1} + k_t^T v_t          o_t = scale * q_t h_t
//
// (Gated Linear Attention, arXiv 2312.06635, section 4; Lightning Attention-2, arXiv 2401.04658, for fixed decays.)
//
// Sizes: B batch, T tokens of this shard, H heads, K key dim, V value dim, N = ceil(T / C) chunks of C tokens; a span
// is one chunk or several.
// Forward is carry_forward, advance_forward, output_forward; backward is carry_backward, advance_backward,
// attention_gradients. Only the two `advance` stages need the state of another rank; each applies the shard's carry
// span by span, so shards that end on span boundaries give the same bits on any number of ranks.
// A shard that hands nothing on takes attention_forward and attention_backward, which are these stages in one; where
// nobody wants the last state, no carry is made of the tokens of the last walk.
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
  int64_t span = kChunk;  // tokens from one stored state to the next, and
  int64_t walk = kChunk;  // tokens that outputs and gradients go over from one, whole spans: as choose_spans says
  int64_t num_chunks() const { return (T + kChunk - 1) / kChunk; }
  int64_t num_spans() const { return (T + span - 1) / span; }
  int64_t num_walks() const { return (T + walk - 1) / walk; }
  bool has_decay_v() const { return gate == GateKind::kBilinear; }
  Shape state() const { return {B, H, K, V}; }
  /// Of AttentionChunks::state. One state more than spans: state s enters span s, the last one leaves the shard.
  Shape span_states() const { return {B, H, num_spans() + 1, K, V}; }
  /// Of AttentionChunks::decay_k (dim = K) and decay_v (dim = V).
  Shape span_decays(int64_t dim) const { return {B, H, num_spans(), dim}; }
};

/// The span and walk that the kernels of q's dtype take for this shape: kChunk, where every chunk's state is kept, or,
/// in bfloat16 (CUDA alone), both kLongSpan, or kLongerSpan where batch and heads half fill a device, and walks of two
/// of these where they fill it; then tensors must be aligned to 16 bytes. They follow from the kind of device, not from
/// T, so bits do not depend on how T is cut.
void choose_spans(AttentionShape& shape, DType dtype);
/// Whether there are kernels for spans longer than a chunk, on a device that gives a block so much shared memory.
bool walks_take(const AttentionShape& shape, int64_t shared_bytes);
/// Whether walks over these spans make their decayed queries and keys and scores themselves, and none of
/// AttentionWork's.
bool walks_fuse(const AttentionShape& shape);
/// Whether blocks of these walks share tiles (kernels/cuda/linear_attention_shared.cuh).
bool walks_share(const AttentionShape& shape);
/// Whether one of them makes dv and dk at once; then the gradient of scalar gates needs no states of chunks.
bool walks_make_gradients_at_once(const AttentionShape& shape);
inline constexpr int64_t kLongSpan = 16 * kChunk, kLongerSpan = 32 * kChunk;

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
/// Forward: state s is the state entering span s, the last one is ht. Gradient: state s is the gradient arriving at the
/// start of span s (of the state entering it), the last one is dht. Before `advance`, they are the spans' own parts.
struct AttentionChunks {
  Tensor state;    // span_states()
  Tensor decay_k;  // span_decays(K): decay of a whole span on the key channels; zero where a document starts inside.
  Tensor decay_v;  // span_decays(V): the same on the value channels; bilinear only, else undefined
  Tensor work;     // uint8 [AttentionWork::bytes] where that is not 0, from carry_forward to attention_gradients
};

/// Gradients of learned gates by walks over long spans are made part after part, so many batches and walks at a time as
/// fill a device twice (where walks share, whose states are large, once), so that what is kept of their chunks does not
/// grow with the batch and the sequence; and of kPartChunks chunks of a head at most (which a CUDA grid may have), if a
/// walk has no more.
struct AttentionParts {
  static constexpr int64_t kPartChunks = 65535;
  int64_t batches = 0, walks = 0;
  static AttentionParts of(const AttentionShape& shape);
};

/// What kernels that walk over long spans keep of a whole shard: places in AttentionChunks::work, in bytes.
struct AttentionWork {
  int64_t q = 0, k = 0;           // bfloat16 [B, H, N, C, K] in tiles, decayed; vector gates that do not fuse
  int64_t scores = 0, rest = 0;   // bfloat16 [B, H, N, C, C]; what their rounding left, where walks share; the same
  int64_t decay = 0;              // float32 [B, H, N, K] of whole chunks; the same
  int64_t state = 0, dstate = 0;  // bfloat16 [.., V, K] entering, and gradient leaving, a part's chunks; learned gates
  // Scalar gates where one walk makes dv and dk have none of these two, but, of a walk's A anchors:
  int64_t anchor_state = 0, anchor = 0;      // bfloat16 [B, H, walks, A, K V], float32 [B, H, walks, A, K / 16]
  int64_t queries = 0, keys = 0, pairs = 0;  // float32 [B, H, N, C]
  int64_t bytes = 0;
  static AttentionWork of(const AttentionShape& shape);
  Shape shape() const { return bytes > 0 ? Shape{bytes} : Shape{}; }
};

/// Makes the tensors by make(shape, dtype); `number` is the dtype of states. The gradient's has `state` alone.
template <class Make>
AttentionChunks make_attention_chunks(const AttentionShape& s, DType number, bool gradient, Make&& make) {
  AttentionChunks c;
  c.state = make(s.span_states(), number);
  if (gradient) return c;
  c.decay_k = make(s.span_decays(s.K), number);
  if (s.has_decay_v()) c.decay_v = make(s.span_decays(s.V), number);
  if (const Shape work = AttentionWork::of(s).shape(); work.rank() > 0) c.work = make(work, DType::kUInt8);
  return c;
}

/// Makes each span's carry: decays, and the state it adds: sum over its tokens of (k_t e_t)^T (v_t ev_t).
void carry_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Stream& stream);

/// Composes: state_0 = h0, state_{s+1} = decay_s * state_s + S_s, ht the last state. h0, ht [B, H, K, V]; may not
/// alias. Here and below, h0 and dht may be undefined: zeros; and ht and dh0: not wanted.
void advance_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                     const Stream& stream);

/// o [B, T, H, V], after advance_forward.
void output_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& o, const Stream& stream);

/// Makes each span's own part of the state gradient: sum over its tokens of scale (q_t c_t)^T (dout_t cv_t); and, where
/// spans are long, its decays anew. `chunks` are the forward's; dout [B, T, H, V].
void carry_backward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& dout,
                    const AttentionChunks& dchunks, const Stream& stream);

/// Composes from the right: the last dstate = dht, dstate_s = decay_s * dstate_{s+1} + dS_s, dh0 = dstate_0.
void advance_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                      const Tensor& dht, const Tensor& dh0, const Stream& stream);

/// Outputs of attention_gradients, overwritten.
struct AttentionGradients {
  Tensor dq, dk;  // [B, T, H, K]
  Tensor dv;      // [B, T, H, V]
  Tensor dgk;  // as gk for scalar (summed over K), vector and bilinear; else undefined (a fixed decay learns nothing)
  Tensor dgv;  // as gv, bilinear only
};

/// After advance_forward and advance_backward. Gate gradients in closed form, anchored at each chunk's end, or, of
/// scalar gates where walks make dv and dk at once, at every few:
///   dgk_t = rowsum_v(h_c * dh_c) + sum over s >= t in the chunk and t's document of (q_s * dq_s - k_s * dk_s),
/// with a token's product with itself left out of both terms; exactly 0 at a document start and where the gate is -inf.
/// For gv: colsum_k(h_c * dh_c) + sum of (o_s * dout_s - v_s * dv_s).
void attention_gradients(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                         const Tensor& dout, const AttentionGradients& out, const Stream& stream);

/// carry_forward, advance_forward, output_forward; only with ht is `chunks` what these leave.
void attention_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                       const Tensor& o, const Stream& stream);

/// What attention_backward needs of a forward whose `chunks` have served another call since; with ht all that the
/// stages leave.
void attention_states(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                      const Stream& stream);

/// carry_backward, advance_backward, attention_gradients; after attention_forward or attention_states from the same h0.
/// Only with dh0 is `dchunks` what these leave.
void attention_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                        const Tensor& h0, const Tensor& dout, const Tensor& dht, const Tensor& dh0,
                        const AttentionGradients& out, const Stream& stream);

/// For dumps: the state between tokens `token` - 1 and `token` of the shard, 0 <= token <= T, after advance_forward;
/// and its gradient, after advance_backward. h, dh [B, H, K, V].
void state_at(const AttentionInputs& in, const AttentionChunks& chunks, int64_t token, const Tensor& h,
              const Stream& stream);
void state_gradient_at(const AttentionInputs& in, const AttentionChunks& dchunks, const Tensor& dout, int64_t token,
                       const Tensor& dh, const Stream& stream);

}  // namespace baton
