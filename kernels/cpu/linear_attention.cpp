// Linear attention: the checks of every stage, then the CPU's stages by dtype.
#include "kernels/linear_attention.h"

#include "kernels/cpu/linear_attention_stages.h"
#include "kernels/dispatch.h"
#include "kernels/linear_attention_walk.h"
#include "runtime/cuda.h"

namespace baton {
namespace {

constexpr const char* kGateNames[] = {"none", "fixed", "scalar", "vector", "bilinear"};

void check_optional(const Tensor& x, const char* name, bool wanted, const Shape& shape, DType dtype) {
  if (wanted) {
    check_tensor(x, name, shape, dtype);
  } else {
    CHECK(!x.defined(), "{} must be undefined for this gate kind", name);
  }
}

void check_inputs(const AttentionInputs& in) {
  const AttentionShape& s = in.shape;
  const DType dtype = in.q.dtype;
  const Shape keys{s.B, s.T, s.H, s.K}, values{s.B, s.T, s.H, s.V};
  CHECK(s.K > 0 && s.V > 0, "head dimensions must be positive, got K {} and V {}", s.K, s.V);
  CHECK(in.q.device.type == DeviceType::kCpu, "this build has no CUDA backend");
  CHECK(s.span == kChunk, "span {}: a CPU keeps the states of all chunks, of {} tokens", s.span, kChunk);
  check_tensor(in.q, "q", keys, dtype);
  check_tensor(in.k, "k", keys, dtype);
  check_tensor(in.v, "v", values, dtype);
  const Shape gates = s.gate == GateKind::kFixed    ? Shape{s.H}
                      : s.gate == GateKind::kScalar ? Shape{s.B, s.T, s.H}
                                                    : keys;
  check_optional(in.gk, "gk", s.gate != GateKind::kNone, gates, dtype);
  check_optional(in.gv, "gv", s.gate == GateKind::kBilinear, values, dtype);
  check_optional(in.starts, "starts", in.starts.defined(), Shape{s.B, s.T}, DType::kUInt8);
}

void check_decays(const AttentionInputs& in, const AttentionChunks& chunks) {
  const AttentionShape& s = in.shape;
  check_tensor(chunks.decay_k, "decay_k", s.span_decays(s.K), in.q.dtype);
  check_optional(chunks.decay_v, "decay_v", s.gate == GateKind::kBilinear, s.span_decays(s.V), in.q.dtype);
}

void check_states(const AttentionInputs& in, const Tensor& states, const char* name) {
  check_tensor(states, name, in.shape.span_states(), in.q.dtype);
}

void check_values(const AttentionInputs& in, const Tensor& x, const char* name) {
  const AttentionShape& s = in.shape;
  check_tensor(x, name, Shape{s.B, s.T, s.H, s.V}, in.q.dtype);
}

void check_state_pair(const AttentionInputs& in, const Tensor& from, const char* from_name, const Tensor& to,
                      const char* to_name) {
  if (from.defined()) check_tensor(from, from_name, in.shape.state(), in.q.dtype);
  if (to.defined()) check_tensor(to, to_name, in.shape.state(), in.q.dtype);
}

}  // namespace

const char* to_string(GateKind kind) { return kGateNames[static_cast<int>(kind)]; }

GateKind parse_gate_kind(const std::string& word) {
  for (int i = 0; i < 5; ++i) {
    if (word == kGateNames[i]) return static_cast<GateKind>(i);
  }
  throw Error(ExitCode::kInput,
              fmt::format("gate is \"{}\", but must be none, fixed, scalar, vector or bilinear", word));
}

bool walks_take(const AttentionShape& s, int64_t shared_bytes) {
  const auto walk = [&](int64_t own_dim, int64_t other_dim) {
    const int own = static_cast<int>(own_dim), other = static_cast<int>(other_dim);
    return walk_exists(own, other) && walk_shared_bytes(own, other, s.gate == GateKind::kVector, true) <= shared_bytes;
  };
  const bool learned = s.gate == GateKind::kScalar || s.gate == GateKind::kVector;
  return s.gate != GateKind::kBilinear && walk(s.V, s.K) && (learned || walk(s.K, s.V));
}

bool walks_fuse(const AttentionShape& s) {
  return s.gate == GateKind::kVector && cuda::has_warpgroups() &&
         fused_walk_exists(static_cast<int>(s.K), static_cast<int>(s.V));
}

bool walks_share(const AttentionShape& s) {
  return s.gate == GateKind::kVector && s.K == 256 && cuda::has_warpgroups();
}

/// Of the outputs' walk, one a sequence, head and own channels.
static int64_t walk_blocks(const AttentionShape& s) { return s.H * (s.V / walk_own(static_cast<int>(s.V))); }
/// Blocks of walks that fill a device: one on each multiprocessor, or two.
static int64_t filling_blocks(const AttentionShape& s) { return s.K == 256 || walks_fuse(s) ? 128 : 256; }

bool walks_make_gradients_at_once(const AttentionShape& s) {
  const int dim = static_cast<int>(s.K);
  return s.gate != GateKind::kVector && gradient_walk_exists(dim, static_cast<int>(s.V)) &&
         gradient_walk_shared_bytes(dim, s.gate == GateKind::kScalar) <= cuda::max_shared_bytes();
}

void choose_spans(AttentionShape& s, DType dtype) {
  s.span = s.walk = kChunk;
  if (dtype != DType::kBFloat16 || !walks_take(s, cuda::max_shared_bytes())) return;
  const int64_t blocks = s.B * walk_blocks(s);
  s.span = blocks < 64 ? kLongSpan : kLongerSpan;
  s.walk = 2 * blocks >= filling_blocks(s) ? 2 * s.span : s.span;
}

AttentionParts AttentionParts::of(const AttentionShape& s) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  // As many as possible of at least so many, and even.
  const auto part = [&](int64_t all, int64_t least) { return up(all, std::max<int64_t>(all / least, 1)); };
  const int64_t most = std::max<int64_t>(kPartChunks / (2 * (s.walk / kChunk)), 1);
  const int64_t fillings = walks_share(s) ? 1 : 2;
  const int64_t walks = std::min(up(fillings * filling_blocks(s), walk_blocks(s)), most), in_batch = s.num_walks();
  if (walks <= in_batch) return {1, part(in_batch, walks)};
  return {part(s.B, up(walks, std::max<int64_t>(in_batch, 1))), in_batch};
}

AttentionWork AttentionWork::of(const AttentionShape& s) {
  AttentionWork work;
  const auto take = [&](int64_t bytes) {
    const int64_t place = work.bytes;
    work.bytes += (bytes + 255) / 256 * 256;
    return place;
  };
  if (s.span == kChunk) return work;
  const int64_t chunks = s.B * s.H * s.num_chunks();
  if (s.gate == GateKind::kVector && !walks_fuse(s)) {
    work.q = take(2 * chunks * kChunk * s.K), work.k = take(2 * chunks * kChunk * s.K);
    work.scores = take(2 * chunks * kChunk * kChunk), work.decay = take(4 * chunks * s.K);
    if (walks_share(s)) work.rest = take(2 * chunks * kChunk * kChunk);
  }
  if (s.gate == GateKind::kScalar && walks_make_gradients_at_once(s)) {
    const int64_t anchors = s.B * s.H * s.num_walks() * (walk_segments(s.walk / kChunk) + 1);
    work.anchor_state = take(2 * anchors * s.K * s.V), work.anchor = take(4 * anchors * s.K / 16);
    for (int64_t* sums : {&work.queries, &work.keys, &work.pairs}) *sums = take(4 * chunks * kChunk);
  } else if (s.gate == GateKind::kVector || s.gate == GateKind::kScalar) {
    const AttentionParts parts = AttentionParts::of(s);
    const int64_t in_part = parts.batches * s.H * std::min(parts.walks * (s.walk / kChunk), s.num_chunks());
    work.state = take(2 * in_part * s.K * s.V), work.dstate = take(2 * in_part * s.K * s.V);
  }
  return work;
}

void carry_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Stream& stream) {
  BATON_ON_CUDA(stream, carry_forward(in, chunks, stream));
  check_inputs(in);
  check_decays(in, chunks);
  check_states(in, chunks.state, "chunk states");
  dispatch_float(in.q.dtype, [&]<class Real>() { attention::carry_forward<Real>(in, chunks); });
}

void advance_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                     const Stream& stream) {
  BATON_ON_CUDA(stream, advance_forward(in, chunks, h0, ht, stream));
  check_inputs(in);
  check_decays(in, chunks);
  check_states(in, chunks.state, "chunk states");
  check_state_pair(in, h0, "h0", ht, "ht");
  dispatch_float(in.q.dtype, [&]<class Real>() { attention::advance_forward<Real>(in, chunks, h0, ht); });
}

void output_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& o, const Stream& stream) {
  BATON_ON_CUDA(stream, output_forward(in, chunks, o, stream));
  check_inputs(in);
  check_states(in, chunks.state, "chunk states");
  check_values(in, o, "o");
  dispatch_float(in.q.dtype, [&]<class Real>() { attention::output_forward<Real>(in, chunks, o); });
}

void carry_backward(const AttentionInputs& in, [[maybe_unused]] const AttentionChunks& chunks, const Tensor& dout,
                    const AttentionChunks& dchunks, const Stream& stream) {
  BATON_ON_CUDA(stream, carry_backward(in, chunks, dout, dchunks, stream));
  check_inputs(in);
  check_states(in, dchunks.state, "chunk state gradients");
  check_values(in, dout, "dout");
  dispatch_float(in.q.dtype, [&]<class Real>() { attention::carry_backward<Real>(in, dout, dchunks); });
}

void advance_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                      const Tensor& dht, const Tensor& dh0, const Stream& stream) {
  BATON_ON_CUDA(stream, advance_backward(in, chunks, dchunks, dht, dh0, stream));
  check_inputs(in);
  check_decays(in, chunks);
  check_states(in, dchunks.state, "chunk state gradients");
  check_state_pair(in, dht, "dht", dh0, "dh0");
  dispatch_float(in.q.dtype, [&]<class Real>() { attention::advance_backward<Real>(in, chunks, dchunks, dht, dh0); });
}

void attention_gradients(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                         const Tensor& dout, const AttentionGradients& out, const Stream& stream) {
  BATON_ON_CUDA(stream, attention_gradients(in, chunks, dchunks, dout, out, stream));
  check_inputs(in);
  check_states(in, chunks.state, "chunk states");
  check_states(in, dchunks.state, "chunk state gradients");
  check_values(in, dout, "dout");
  check_tensor(out.dq, "dq", in.q.shape, in.q.dtype);
  check_tensor(out.dk, "dk", in.k.shape, in.q.dtype);
  check_tensor(out.dv, "dv", in.v.shape, in.q.dtype);
  const GateKind gate = in.shape.gate;
  check_optional(out.dgk, "dgk", gate != GateKind::kNone && gate != GateKind::kFixed, in.gk.shape, in.q.dtype);
  check_optional(out.dgv, "dgv", gate == GateKind::kBilinear, in.gv.shape, in.q.dtype);
  dispatch_float(in.q.dtype, [&]<class Real>() { attention::gradients<Real>(in, chunks, dchunks, dout, out); });
}

void attention_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                       const Tensor& o, const Stream& stream) {
  BATON_ON_CUDA(stream, attention_forward(in, chunks, h0, ht, o, stream));
  attention_states(in, chunks, h0, ht, stream);
  output_forward(in, chunks, o, stream);
}

void attention_states(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                      const Stream& stream) {
  BATON_ON_CUDA(stream, attention_states(in, chunks, h0, ht, stream));
  carry_forward(in, chunks, stream);
  advance_forward(in, chunks, h0, ht, stream);
}

void attention_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                        [[maybe_unused]] const Tensor& h0, const Tensor& dout, const Tensor& dht, const Tensor& dh0,
                        const AttentionGradients& out, const Stream& stream) {
  BATON_ON_CUDA(stream, attention_backward(in, chunks, dchunks, h0, dout, dht, dh0, out, stream));
  carry_backward(in, chunks, dout, dchunks, stream);
  advance_backward(in, chunks, dchunks, dht, dh0, stream);
  attention_gradients(in, chunks, dchunks, dout, out, stream);
}

void state_at(const AttentionInputs& in, const AttentionChunks& chunks, int64_t token, const Tensor& h,
              const Stream& stream) {
  BATON_ON_CUDA(stream, state_at(in, chunks, token, h, stream));
  check_inputs(in);
  check_states(in, chunks.state, "chunk states");
  check_tensor(h, "h", in.shape.state(), in.q.dtype);
  CHECK(token >= 0 && token <= in.shape.T, "token {} is outside [0, {}]", token, in.shape.T);
  dispatch_float(in.q.dtype, [&]<class Real>() { attention::state_at<Real>(in, chunks, token, h); });
}

void state_gradient_at(const AttentionInputs& in, const AttentionChunks& dchunks, const Tensor& dout, int64_t token,
                       const Tensor& dh, const Stream& stream) {
  BATON_ON_CUDA(stream, state_gradient_at(in, dchunks, dout, token, dh, stream));
  check_inputs(in);
  check_states(in, dchunks.state, "chunk state gradients");
  check_values(in, dout, "dout");
  check_tensor(dh, "dh", in.shape.state(), in.q.dtype);
  CHECK(token >= 0 && token <= in.shape.T, "token {} is outside [0, {}]", token, in.shape.T);
  dispatch_float(in.q.dtype, [&]<class Real>() { attention::state_gradient_at<Real>(in, dchunks, dout, token, dh); });
}

}  // namespace baton
