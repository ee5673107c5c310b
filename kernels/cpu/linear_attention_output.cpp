// Outputs of a chunk: from the state that enters it, from its own earlier tokens, and from each token itself.
//   o_t = ((scale q_t c_t) h) cv_t + sum_{j < t} p_tj v_j D^v_tj + (scale q_t . k_t) v_t
#include "kernels/cpu/linear_attention_pairs.h"
#include "kernels/cpu/linear_attention_stages.h"

namespace baton::attention {
namespace {

template <class Real>
class OutputStage {
 public:
  OutputStage(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& o)
      : in_(in),
        chunks_(chunks),
        o_(o),
        width_k_(padded<Real>(in.shape.K)),
        width_v_(padded<Real>(in.shape.V)),
        key_(key_decay(in.shape.gate), in.shape.K, scratch_),
        value_(value_decay(in.shape.gate), in.shape.V, scratch_),
        key_pairs_(key_, in.shape.K, scratch_),
        value_pairs_(value_, in.shape.V, scratch_) {
    for (Real** tile : {&q_, &k_, &queries_}) *tile = scratch_.take(kChunk * width_k_);
    for (Real** tile : {&v_, &out_}) *tile = scratch_.take(kChunk * width_v_);
    for (Real** tile : {&weight_, &p_}) *tile = scratch_.take(kChunk * kChunk);
    h_ = scratch_.take(width_k_ * width_v_);
  }

  void run(const Stretch& at) {
    const AttentionShape& s = in_.shape;
    load_tile<Real>(in_.q, s, at, s.K, static_cast<Real>(in_.scale), q_);
    load_tile<Real>(in_.k, s, at, s.K, Real{1}, k_);
    load_tile<Real>(in_.v, s, at, s.V, Real{1}, v_);
    load_state(state_row<Real>(chunks_.state, s, at, at.chunk), s, h_);
    key_.read(in_.gk, in_, at);
    value_.read(in_.gv, in_, at);
    if (!key_.channels()) key_.weights(at.n, weight_);
    key_pairs_.scores(at.n, q_, k_, weight_, p_);
    value_.climb();

    scale_rows<false>(at.n, width_k_, q_, key_.through(), key_.width(), queries_);
    gemm<Real>(at.n, width_v_, s.K, {queries_, width_k_, 1}, h_, width_v_, Store::kSet, out_, width_v_);
    if (value_.any()) scale_rows<false>(at.n, width_v_, out_, value_.through(), value_.width(), out_);
    value_pairs_.apply(at.n, p_, nullptr, v_, out_, nullptr);
    add_own(at.n);
    store_tile(out_, s, at, s.V, o_);
  }

 private:
  void add_own(int64_t n) {
    for (int64_t t = 0; t < n; ++t) {
      const Real *q = q_ + t * width_k_, *k = k_ + t * width_k_, *v = v_ + t * width_v_;
      Real own = 0, *out = out_ + t * width_v_;
#pragma omp simd reduction(+ : own)
      for (int64_t c = 0; c < width_k_; ++c) own += q[c] * k[c];
#pragma omp simd
      for (int64_t c = 0; c < width_v_; ++c) out[c] += own * v[c];
    }
  }

  const AttentionInputs& in_;
  const AttentionChunks& chunks_;
  const Tensor& o_;
  int64_t width_k_, width_v_;
  Scratch<Real> scratch_;
  Decay<Real> key_, value_;
  Pairs<Real> key_pairs_, value_pairs_;
  Real *q_, *k_, *queries_, *v_, *out_, *weight_, *p_, *h_;
};

}  // namespace

template <class Real>
void output_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& o) {
  for_each_chunk<OutputStage<Real>>(in.shape, in, chunks, o);
}

template void output_forward<float>(const AttentionInputs&, const AttentionChunks&, const Tensor&);
template void output_forward<double>(const AttentionInputs&, const AttentionChunks&, const Tensor&);

}  // namespace baton::attention
