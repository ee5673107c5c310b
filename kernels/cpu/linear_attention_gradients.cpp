// Gradients of a chunk. h is the state that enters it, dh the gradient of the state that leaves it.
//   dq_t = ((dout_t cv_t) h^T) c_t scale + pairs          dk_t = ((v_t ev_t) dh^T) e_t + pairs
//   dv_t = ((k_t e_t) dh) ev_t + pairs                    (o_t, which gates on values need, as in the forward)
// and, after the gate gradients, each token's product with itself.
//
// Gate gradients: the closed form with the part that cancels left out. The chunk-end anchor h_c * dh_c holds, for every
// token s of the chunk, k_s * (dk_s from dh), and the sum over s >= t takes it off again; so
//   dgk_t = G rowsum_v(h * dh) + sum_{s < t} k_s * (dk_s from dh) + sum_{s >= t} (q_s * dq_s - k_s * (dk_s from
//   pairs)).
// The first two vanish by themselves across a forgotten state; the third sum restarts where the gate is -inf.
#include "kernels/cpu/linear_attention_pairs.h"
#include "kernels/cpu/linear_attention_stages.h"

namespace baton::attention {
namespace {

/// One side of the products, keys or values: x is the query (q scaled, or dout), y the key (k, or v).
template <class Real>
struct GradientSide {
  GradientSide(DecayKind kind, int64_t size, Scratch<Real>& scratch)
      : dim(size), width(padded<Real>(size)), decay(kind, size, scratch), pairs(decay, size, scratch) {
    for (Real** tile : {&x, &y, &x_decayed, &y_decayed, &dx, &dy, &dy_state, &sums}) {
      *tile = scratch.take(kChunk * width);
    }
    p = scratch.take(kChunk * kChunk);
    anchor = scratch.take(width);
  }

  /// Decayed queries and keys: what meets the state and its gradient.
  void meet_state(int64_t n) {
    decay_rows(n, x, decay.through(), x_decayed);
    decay_rows(n, y, decay.after(), y_decayed);
  }
  void decay_rows(int64_t n, const Real* from, const Real* factor, Real* to) const {
    if (decay.any()) {
      scale_rows<false>(n, width, from, factor, decay.width(), to);
    } else if (from != to) {
      std::copy_n(from, n * width, to);
    }
  }

  int64_t dim, width;
  Decay<Real> decay;
  Pairs<Real> pairs;
  Real *x, *y, *x_decayed, *y_decayed;
  Real *dx, *dy;   // gradients of queries (for values: the output) and keys, without a token's product with itself
  Real* dy_state;  // the part of dy that comes from dh
  Real *sums, *p;  // gate gradient a channel; scores
  Real* anchor;    // decay of the chunk * (h * dh summed over the other side)
};

template <class Real>
class GradientStage {
 public:
  GradientStage(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                const Tensor& dout, const AttentionGradients& out)
      : in_(in),
        chunks_(chunks),
        dchunks_(dchunks),
        dout_(dout),
        out_(out),
        key_(key_decay(in.shape.gate), in.shape.K, scratch_),
        value_(value_decay(in.shape.gate), in.shape.V, scratch_),
        weight_(scratch_.take(kChunk * kChunk)) {
    for (Real** tile : {&h_, &dh_, &h_transposed_, &dh_transposed_}) *tile = scratch_.take(key_.width * value_.width);
  }

  void run(const Stretch& at) {
    read(at);
    from_states(at.n);
    from_pairs(at.n);
    if (out_.dgk.defined()) gate_gradient(at, key_, out_.dgk);
    if (out_.dgv.defined()) gate_gradient(at, value_, out_.dgv);
    add_own(at.n);
    const AttentionShape& s = in_.shape;
    store_tile(key_.dx, s, at, s.K, out_.dq);
    store_tile(key_.dy, s, at, s.K, out_.dk);
    store_tile(value_.dy, s, at, s.V, out_.dv);
  }

 private:
  void read(const Stretch& at) {
    const AttentionShape& s = in_.shape;
    load_tile<Real>(in_.q, s, at, s.K, static_cast<Real>(in_.scale), key_.x);
    load_tile<Real>(in_.k, s, at, s.K, Real{1}, key_.y);
    load_tile<Real>(dout_, s, at, s.V, Real{1}, value_.x);
    load_tile<Real>(in_.v, s, at, s.V, Real{1}, value_.y);
    load_state(state_row<Real>(chunks_.state, s, at, at.chunk), s, h_);
    load_state(state_row<Real>(dchunks_.state, s, at, at.chunk + 1), s, dh_);
    key_.decay.read(in_.gk, in_, at);
    value_.decay.read(in_.gv, in_, at);
    if (!key_.decay.channels()) key_.decay.weights(at.n, weight_);
    key_.pairs.scores(at.n, key_.x, key_.y, weight_, key_.p);
    value_.pairs.scores(at.n, value_.x, value_.y, key_.decay.channels() ? nullptr : weight_, value_.p);
  }

  /// What crosses the chunk's borders. After `scores` the decays reach over the whole chunk.
  void from_states(int64_t n) {
    const int64_t wk = key_.width, wv = value_.width;
    const AttentionShape& s = in_.shape;
    key_.meet_state(n);
    value_.meet_state(n);
    transpose<Real>(wk, wv, h_, wv, h_transposed_, wk);
    transpose<Real>(wk, wv, dh_, wv, dh_transposed_, wk);
    gemm<Real>(n, wk, s.V, {value_.x_decayed, wv, 1}, h_transposed_, wk, Store::kSet, key_.dx, wk);
    gemm<Real>(n, wk, s.V, {value_.y_decayed, wv, 1}, dh_transposed_, wk, Store::kSet, key_.dy_state, wk);
    gemm<Real>(n, wv, s.K, {key_.y_decayed, wk, 1}, dh_, wv, Store::kSet, value_.dy_state, wv);
    key_.decay_rows(n, key_.dx, key_.decay.through(), key_.dx);
    key_.decay_rows(n, key_.dy_state, key_.decay.after(), key_.dy_state);
    value_.decay_rows(n, value_.dy_state, value_.decay.after(), value_.dy_state);
    if (out_.dgv.defined()) {
      gemm<Real>(n, wv, s.K, {key_.x_decayed, wk, 1}, h_, wv, Store::kSet, value_.dx, wv);
      value_.decay_rows(n, value_.dx, value_.decay.through(), value_.dx);
    }
    make_anchors();
  }

  void make_anchors() {
    const int64_t wk = key_.width, wv = value_.width;
    std::fill_n(key_.anchor, wk, Real{0});
    std::fill_n(value_.anchor, wv, Real{0});
    for (int64_t row = 0; row < in_.shape.K; ++row) {
      const Real decay = key_.decay.whole()[key_.decay.channels() ? row : 0];
      Real sum = 0;
      for (int64_t c = 0; c < in_.shape.V; ++c) {
        const Real both = value_.decay.any() ? decay * value_.decay.whole()[c] : decay;
        const Real product = both * h_[row * wv + c] * dh_[row * wv + c];
        sum += product;
        value_.anchor[c] += product;
      }
      key_.anchor[row] = sum;
    }
  }

  void from_pairs(int64_t n) {
    std::fill_n(key_.dy, n * key_.width, Real{0});
    std::fill_n(value_.dy, n * value_.width, Real{0});
    key_.pairs.apply(n, value_.p, key_.x, key_.y, key_.dx, key_.dy);
    value_.pairs.apply(n, key_.p, value_.x, value_.y, out_.dgv.defined() ? value_.dx : nullptr, value_.dy);
  }

  void gate_gradient(const Stretch& at, GradientSide<Real>& side, const Tensor& out) {
    const int64_t width = side.width;
    Real* sum = side.anchor;
    for (int64_t t = 0; t < at.n; ++t) {
      for (int64_t i = t * width, c = 0; c < width; ++c, ++i) {
        side.sums[i] = sum[c];
        sum[c] += side.y[i] * side.dy_state[i];
      }
    }
    std::fill_n(sum, width, Real{0});
    const int64_t per_gate = side.decay.width();
    for (int64_t t = at.n - 1; t >= 0; --t) {
      for (int64_t i = t * width, c = 0; c < width; ++c, ++i) {
        const bool forgets = std::isinf(side.decay.gates()[per_gate == 1 ? t : i]);
        sum[c] += side.x[i] * side.dx[i] - side.y[i] * side.dy[i];
        side.sums[i] = forgets ? Real{0} : side.sums[i] + sum[c];
        sum[c] = forgets ? Real{0} : sum[c];
      }
    }
    store_gate_gradient(at, side, out);
  }

  void store_gate_gradient(const Stretch& at, const GradientSide<Real>& side, const Tensor& out) {
    const AttentionShape& s = in_.shape;
    if (side.decay.channels()) {
      store_tile(side.sums, s, at, side.dim, out);
      return;
    }
    Real* to = token_row<Real>(out, s, at, 1);
    for (int64_t t = 0; t < at.n; ++t) {
      Real sum = 0;
      for (int64_t c = 0; c < side.dim; ++c) sum += side.sums[t * side.width + c];
      to[t * s.H] = sum;
    }
  }

  void add_own(int64_t n) {
    const Real scale = static_cast<Real>(in_.scale);
    for (int64_t i = 0; i < n * key_.width; ++i) key_.dy[i] += key_.dy_state[i];
    for (int64_t i = 0; i < n * value_.width; ++i) value_.dy[i] += value_.dy_state[i];
    for (int64_t t = 0; t < n; ++t) {
      const int64_t ik = t * key_.width, iv = t * value_.width;
      Real p = 0, dp = 0;
#pragma omp simd reduction(+ : p)
      for (int64_t c = 0; c < key_.width; ++c) p += key_.x[ik + c] * key_.y[ik + c];
#pragma omp simd reduction(+ : dp)
      for (int64_t c = 0; c < value_.width; ++c) dp += value_.x[iv + c] * value_.y[iv + c];
      for (int64_t c = 0; c < key_.width; ++c) key_.dx[ik + c] = scale * (key_.dx[ik + c] + dp * key_.y[ik + c]);
      for (int64_t c = 0; c < key_.width; ++c) key_.dy[ik + c] += dp * key_.x[ik + c];
      for (int64_t c = 0; c < value_.width; ++c) value_.dy[iv + c] += p * value_.x[iv + c];
    }
  }

  const AttentionInputs& in_;
  const AttentionChunks& chunks_;
  const AttentionChunks& dchunks_;
  const Tensor& dout_;
  const AttentionGradients& out_;
  Scratch<Real> scratch_;
  GradientSide<Real> key_, value_;
  Real* weight_;
  Real *h_, *dh_, *h_transposed_, *dh_transposed_;
};

}  // namespace

template <class Real>
void gradients(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
               const Tensor& dout, const AttentionGradients& out) {
  for_each_chunk<GradientStage<Real>>(in.shape, in, chunks, dchunks, dout, out);
}

template void gradients<float>(const AttentionInputs&, const AttentionChunks&, const AttentionChunks&, const Tensor&,
                               const AttentionGradients&);
template void gradients<double>(const AttentionInputs&, const AttentionChunks&, const AttentionChunks&, const Tensor&,
                                const AttentionGradients&);

}  // namespace baton::attention
