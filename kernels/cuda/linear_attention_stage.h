// A stage of linear attention on CUDA: its arguments, filled as its tensors are checked, and its launches.
#pragma once

#include "kernels/cuda/linear_attention_arguments.h"
#include "kernels/linear_attention.h"
#include "kernels/linear_attention_walk.h"
#include "runtime/cuda.h"

namespace baton::cuda {

using attention::Arguments;
using attention::Gate;

static_assert(attention::kChunk == kChunk);
static_assert(static_cast<int>(Gate::kNone) == static_cast<int>(GateKind::kNone));
static_assert(static_cast<int>(Gate::kFixed) == static_cast<int>(GateKind::kFixed));
static_assert(static_cast<int>(Gate::kScalar) == static_cast<int>(GateKind::kScalar));
static_assert(static_cast<int>(Gate::kVector) == static_cast<int>(GateKind::kVector));
static_assert(static_cast<int>(Gate::kBilinear) == static_cast<int>(GateKind::kBilinear));

inline void check_launch(cudaError_t error, const char* stage) {
  CHECK(error == cudaSuccess, "{} did not start: {}", stage, cudaGetErrorString(error));
}

inline void check(const Tensor& x, const char* name, const Shape& shape, DType dtype, const Stream& stream) {
  check_tensor(x, name, shape, dtype);
  CHECK(x.device == stream.device, "{} is not on the stream's device", name);
}
inline void check_optional(const Tensor& x, const char* name, bool wanted, const Shape& shape, DType dtype,
                           const Stream& stream) {
  if (wanted) {
    check(x, name, shape, dtype, stream);
  } else {
    CHECK(!x.defined(), "{} must be undefined for this gate kind", name);
  }
}

/// The arguments of a stage, filled as its tensors are checked.
class Stage {
 public:
  Stage(const AttentionInputs& in, const Stream& stream, const char* name)
      : s_(in.shape), stream_(stream), name_(name), dtype_(in.q.dtype), fast_(in.q.dtype == DType::kBFloat16) {
    CHECK_INPUT(dtype_ == DType::kBFloat16 || dtype_ == DType::kFloat32,
                "linear attention on CUDA takes bfloat16 or float32, not {}", to_string(dtype_));
    CHECK_INPUT(s_.K > 0 && s_.V > 0, "head dimensions must be positive, got K {} and V {}", s_.K, s_.V);
    a_.B = s_.B, a_.T = s_.T, a_.H = s_.H, a_.K = s_.K, a_.V = s_.V, a_.N = s_.num_chunks();
    a_.batches = s_.B, a_.chunks = a_.N;
    a_.gate = static_cast<Gate>(s_.gate), a_.warpgroups = cuda::has_warpgroups();
    a_.scale = static_cast<float>(in.scale);
    fast_ = fast_ && s_.K % 8 == 0 && s_.V % 8 == 0;
    CHECK(s_.span > 0 && s_.span % kChunk == 0, "span {} must be a multiple of {}", s_.span, kChunk);
    CHECK(s_.walk >= s_.span && s_.walk % s_.span == 0, "walk {} must be a multiple of span {}", s_.walk, s_.span);
    CHECK(!walks() || (bfloat16() && walks_take(s_, cuda::max_shared_bytes())),
          "span {}: gate {}, K {}, V {} in {} goes chunk by chunk", s_.span, to_string(s_.gate), s_.K, s_.V,
          to_string(dtype_));
    const bool vector = s_.gate == GateKind::kVector || bilinear();
    const Shape gates = s_.gate == GateKind::kFixed ? Shape{s_.H} : vector ? keys() : Shape{s_.B, s_.T, s_.H};
    a_.q = activation(in.q, "q", keys());
    a_.k = activation(in.k, "k", keys());
    a_.v = activation(in.v, "v", values());
    a_.gk = optional(in.gk, "gk", s_.gate != GateKind::kNone, gates);
    a_.gv = optional(in.gv, "gv", bilinear(), values());
    check_optional(in.starts, "starts", in.starts.defined(), Shape{s_.B, s_.T}, DType::kUInt8, stream_);
    if (in.starts.defined()) a_.starts = static_cast<const uint8_t*>(in.starts.data);
  }

  Arguments& arguments() { return a_; }
  const AttentionShape& shape() const { return s_; }
  bool bfloat16() const { return dtype_ == DType::kBFloat16; }
  bool bilinear() const { return s_.gate == GateKind::kBilinear; }
  cudaStream_t queue() const { return static_cast<cudaStream_t>(stream_.handle); }
  Shape keys() const { return {s_.B, s_.T, s_.H, s_.K}; }
  Shape values() const { return {s_.B, s_.T, s_.H, s_.V}; }

  void* activation(const Tensor& x, const char* name, const Shape& shape) {
    check(x, name, shape, dtype_, stream_);
    fast_ = fast_ && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
    return x.data;
  }
  float* number(const Tensor& x, const char* name, const Shape& shape) {
    check(x, name, shape, DType::kFloat32, stream_);
    fast_ = fast_ && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
    return static_cast<float*>(x.data);
  }
  float* optional(const Tensor& x, const char* name, bool wanted, const Shape& shape) {
    check_optional(x, name, wanted, shape, DType::kFloat32, stream_);
    return wanted ? number(x, name, shape) : nullptr;
  }
  /// Null where it is not given, or not wanted.
  float* end(const Tensor& x, const char* name) { return optional(x, name, x.defined(), s_.state()); }
  float* states(const Tensor& x, const char* name) { return number(x, name, s_.span_states()); }
  void decays(const AttentionChunks& chunks) {
    a_.decay_k = number(chunks.decay_k, "decay_k", s_.span_decays(s_.K));
    a_.decay_v = optional(chunks.decay_v, "decay_v", bilinear(), s_.span_decays(s_.V));
  }

  bool walks() const { return s_.span > kChunk; }
  /// One walk goes through the whole shard, so that it can begin where the shard does.
  bool one_walk() const { return walks() && s_.num_walks() == 1; }
  /// And end there: the end is not wanted, or is that of one span, so that it is what a composition gives but for
  /// rounding.
  bool walk_ends(const Tensor& end) const { return one_walk() && (!end.defined() || s_.num_spans() == 1); }
  /// Spans whose carry a shard that hands nothing on needs, forward the first so many, backward the last.
  int64_t carried_spans(bool backward, const Tensor& end) const {
    if (end.defined()) return s_.num_spans();
    const int64_t a_walk = s_.walk / s_.span;
    return backward ? std::max<int64_t>(s_.num_spans() - a_walk, 0) : std::max<int64_t>(s_.num_walks() - 1, 0) * a_walk;
  }
  bool vector() const { return s_.gate == GateKind::kVector; }
  bool learned() const { return vector() || s_.gate == GateKind::kScalar; }
  /// Whether walks take what linear_attention_scores.cu makes.
  bool takes_scores() const { return walks() && vector() && !walks_fuse(s_); }
  /// Takes AttentionChunks::work, and what it has for the pass of the keys.
  void work(const AttentionChunks& chunks) {
    const AttentionWork at = AttentionWork::of(s_);
    if (at.bytes == 0) return;
    check(chunks.work, "work", Shape{at.bytes}, DType::kUInt8, stream_);
    auto* base = static_cast<std::byte*>(chunks.work.data);
    const auto scores = [&](int64_t place) { return reinterpret_cast<__nv_bfloat16*>(base + place); };
    decayed_ = {base + at.q, base + at.k, scores(at.scores), walks_share(s_) ? scores(at.rest) : nullptr,
                reinterpret_cast<float*>(base + at.decay)};
    a_.chunk_state = base + at.state, a_.chunk_dstate = base + at.dstate;
    const auto numbers = [&](int64_t place) { return reinterpret_cast<float*>(base + place); };
    sums_ = {reinterpret_cast<__nv_bfloat16*>(base + at.anchor_state),
             numbers(at.anchor),
             numbers(at.queries),
             numbers(at.keys),
             numbers(at.pairs),
             static_cast<int>(walk_segments(s_.walk / kChunk))};
  }
  const attention::ScalarSums& sums() const { return sums_; }
  void launch_scores() { check_launch(attention::launch_scores(a_, decayed_, queue()), name_); }

  enum class Made { kCarry, kChunkStates, kOutput };
  /// The walk of values' side (o, dv) or of keys' (dq, dk), with everything but what it makes.
  attention::Walk walk(bool own_is_keys, bool reversed, Made made) const {
    const void *q = takes_scores() ? decayed_.q : a_.q, *k = takes_scores() ? decayed_.k : a_.k;
    attention::Walk w{};
    const void* first = own_is_keys ? (reversed ? q : k) : (reversed ? a_.dout : a_.v);
    const void* second = own_is_keys ? (reversed ? a_.dout : a_.v) : (reversed ? q : k);
    const void* third = own_is_keys ? (reversed ? a_.v : a_.dout) : (reversed ? k : q);
    w.own = first, w.update = second, w.read = made == Made::kOutput ? third : nullptr;
    w.own_dim = own_is_keys ? s_.K : s_.V;
    // Two, since clusters of four would leave multiprocessors out.
    w.cluster = !walks_share(s_) ? 0 : w.own_dim / walk_own(static_cast<int>(w.own_dim)) % 2 == 0 ? 2 : 1;
    w.own_is_keys = own_is_keys, w.reversed = reversed, w.carry = made == Made::kCarry;
    w.num_spans = s_.num_spans(), w.chunks_per_span = s_.span / kChunk;
    w.num_walks = s_.num_walks(), w.spans_per_walk = s_.walk / s_.span;
    w.states = reversed ? a_.dstate : a_.state;
    w.scores = decayed_.scores, w.rest = decayed_.rest, w.chunk_decay = decayed_.decay;
    return w;
  }
  /// Calls f for every part of the gradients of learned gates (AttentionParts), with its first walk and their number.
  template <class F>
  void for_parts(F&& f) {
    const AttentionParts parts = AttentionParts::of(s_);
    for (int64_t b = 0; b < s_.B; b += parts.batches) {
      for (int64_t walk = 0; walk < s_.num_walks(); walk += parts.walks) {
        const int64_t walks = std::min(parts.walks, s_.num_walks() - walk), in_walk = s_.walk / kChunk;
        a_.first_batch = b, a_.batches = std::min(parts.batches, s_.B - b);
        a_.first_chunk = walk * in_walk, a_.chunks = std::min(walks * in_walk, a_.N - a_.first_chunk);
        f(walk, walks);
      }
    }
  }
  /// Of the first so many spans, or the last.
  void launch_carries(bool backward, int64_t num_spans) {
    attention::Walk w = walk(false, backward, Made::kCarry);
    w.num_walks = num_spans, w.spans_per_walk = 1;
    w.first_span = backward ? w.num_spans - num_spans : 0;
    launch(w);
  }
  void launch(const attention::Walk& w) {
    CHECK(fast_, "{}: tensors of spans of several chunks must be aligned to 16 bytes", name_);
    const auto launch = w.sums.states    ? attention::launch_sum_walk
                        : !vector()      ? attention::launch_number_walk
                        : takes_scores() ? attention::launch_channel_walk
                                         : attention::launch_fused_walk;
    check_launch(launch(a_, w, queue()), name_);
  }

  /// Runs the tensor cores' launcher where it takes this problem, else the general one.
  template <class Fits, class Fast, class General>
  void launch(Fits&& fits, Fast&& fast, General&& general) {
    check_launch(fast_ && fits(a_, cuda::max_shared_bytes()) ? fast() : general(), name_);
  }

 private:
  const AttentionShape& s_;
  const Stream& stream_;
  const char* name_;
  DType dtype_;
  bool fast_;
  Arguments a_{};
  attention::Decayed decayed_{};
  attention::ScalarSums sums_{};
};

}  // namespace baton::cuda
