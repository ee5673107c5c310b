// Carries of chunks and their composition, forward and reversed, and the state at any token.
//   S = sum_t (k_t e_t)^T (v_t ev_t)      dS = sum_t scale (q_t c_t)^T (dout_t cv_t)
// with c the decay from the stretch's start through t, e from after t to its end; cv, ev the same on the value side.
#include "kernels/cpu/linear_attention_decay.h"
#include "kernels/cpu/linear_attention_stages.h"

namespace baton::attention {
namespace {

enum class Side { kForward, kBackward };

/// The carry of one stretch: `state()` and the decays of the whole stretch.
template <class Real, Side kSide>
class Carry {
 public:
  Carry(const AttentionInputs& in, const Tensor& dout)
      : in_(in),
        dout_(dout),
        key_(key_decay(in.shape.gate), in.shape.K, scratch_),
        value_(value_decay(in.shape.gate), in.shape.V, scratch_),
        rows_(scratch_.take(kChunk * padded<Real>(in.shape.K))),
        cols_(scratch_.take(kChunk * padded<Real>(in.shape.V))),
        state_(scratch_.take(padded<Real>(in.shape.K) * padded<Real>(in.shape.V))) {}

  void make(const Stretch& at) {
    const AttentionShape& s = in_.shape;
    const int64_t width_k = padded<Real>(s.K), width_v = padded<Real>(s.V);
    constexpr bool kForward = kSide == Side::kForward;
    load_tile<Real>(kForward ? in_.k : in_.q, s, at, s.K, static_cast<Real>(kForward ? 1.0 : in_.scale), rows_);
    load_tile<Real>(kForward ? in_.v : dout_, s, at, s.V, Real{1}, cols_);
    decay(key_, in_.gk, at, width_k, rows_);
    decay(value_, in_.gv, at, width_v, cols_);
    gemm<Real>(s.K, width_v, at.n, {rows_, 1, width_k}, cols_, width_v, Store::kSet, state_, width_v);
  }

  const Real* state() const { return state_; }
  const Decay<Real>& key() const { return key_; }
  const Decay<Real>& value() const { return value_; }

  /// to = decay of the stretch * from + state(); both [K, V].
  void compose(const Real* from, Real* to) const {
    const AttentionShape& s = in_.shape;
    for (int64_t row = 0; row < s.K; ++row) {
      const Real decay = key_.whole()[key_.channels() ? row : 0];
      for (int64_t c = 0; c < s.V; ++c) {
        const Real both = value_.any() ? decay * value_.whole()[c] : decay;
        to[row * s.V + c] = both * from[row * s.V + c] + state_[row * padded<Real>(s.V) + c];
      }
    }
  }

 private:
  void decay(Decay<Real>& side, const Tensor& gates, const Stretch& at, int64_t width, Real* tile) {
    if (!side.any()) return;
    side.read(gates, in_, at);
    side.climb();
    const Real* factor = kSide == Side::kForward ? side.after() : side.through();
    scale_rows<false>(at.n, width, tile, factor, side.width(), tile);
  }

  const AttentionInputs& in_;
  const Tensor& dout_;
  Scratch<Real> scratch_;
  Decay<Real> key_, value_;
  Real *rows_, *cols_, *state_;
};

template <class Real>
class ForwardStage : Carry<Real, Side::kForward> {
 public:
  ForwardStage(const AttentionInputs& in, const AttentionChunks& chunks)
      : Carry<Real, Side::kForward>(in, in.v), s_(in.shape), chunks_(chunks) {}

  void run(const Stretch& at) {
    this->make(at);
    store_state(this->state(), s_, state_row<Real>(chunks_.state, s_, at, at.chunk + 1));
    Real* decay_k = decay_row<Real>(chunks_.decay_k, s_, at, s_.K);
    if (this->key().channels()) {
      std::copy_n(this->key().whole(), s_.K, decay_k);
    } else {
      std::fill_n(decay_k, s_.K, this->key().whole()[0]);
    }
    if (!this->value().any()) return;
    std::copy_n(this->value().whole(), s_.V, decay_row<Real>(chunks_.decay_v, s_, at, s_.V));
  }

 private:
  const AttentionShape& s_;
  const AttentionChunks& chunks_;
};

template <class Real>
class BackwardStage : Carry<Real, Side::kBackward> {
 public:
  BackwardStage(const AttentionInputs& in, const Tensor& dout, const AttentionChunks& dchunks)
      : Carry<Real, Side::kBackward>(in, dout), s_(in.shape), dchunks_(dchunks) {}

  void run(const Stretch& at) {
    this->make(at);
    store_state(this->state(), s_, state_row<Real>(dchunks_.state, s_, at, at.chunk));
  }

 private:
  const AttentionShape& s_;
  const AttentionChunks& dchunks_;
};

/// Walks the chunks of some rows of every state: next = decay * previous + what `next` holds.
template <class Real, Side kSide>
void advance(const AttentionShape& s, const AttentionChunks& chunks, const Tensor& states, const Tensor& first,
             const Tensor& last) {
  constexpr bool kForward = kSide == Side::kForward;
  constexpr int64_t kRows = 16;
  const int64_t num_chunks = s.num_chunks(), groups = (s.K + kRows - 1) / kRows;
#pragma omp parallel for schedule(static)
  for (int64_t item = 0; item < s.B * s.H * groups; ++item) {
    const int64_t head = item / groups, row = item % groups * kRows, count = std::min(kRows, s.K - row);
    Real* state = states.as<Real>() + (head * (num_chunks + 1) * s.K + row) * s.V;
    Real* previous = state + (kForward ? 0 : num_chunks * s.K * s.V);
    if (first.defined())
      std::copy_n(first.as<Real>() + (head * s.K + row) * s.V, count * s.V, previous);
    else
      std::fill_n(previous, count * s.V, Real{});
    for (int64_t step = 0; step < num_chunks; ++step) {
      const int64_t chunk = kForward ? step : num_chunks - 1 - step;
      Real* next = state + (kForward ? chunk + 1 : chunk) * s.K * s.V;
      const Real* decay_k = chunks.decay_k.as<Real>() + (head * num_chunks + chunk) * s.K + row;
      if (s.gate == GateKind::kBilinear) {
        const Real* decay_v = chunks.decay_v.as<Real>() + (head * num_chunks + chunk) * s.V;
        for (int64_t i = 0; i < count * s.V; ++i) next[i] += decay_k[i / s.V] * decay_v[i % s.V] * previous[i];
      } else {
        for (int64_t r = 0; r < count; ++r) {
#pragma omp simd
          for (int64_t i = r * s.V; i < (r + 1) * s.V; ++i) next[i] += decay_k[r] * previous[i];
        }
      }
      previous = next;
    }
    if (last.defined()) std::copy_n(previous, count * s.V, last.as<Real>() + (head * s.K + row) * s.V);
  }
}

/// Composes every head's state over a part of the chunk of `token`: before it (forward) or from it on (backward).
template <class Real, Side kSide>
void compose_part(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& dout, int64_t token,
                  const Tensor& out) {
  const AttentionShape& s = in.shape;
  constexpr bool kForward = kSide == Side::kForward;
  Carry<Real, kSide> carry(in, dout);
  for (int64_t item = 0; item < s.B * s.H; ++item) {
    const int64_t chunk = token / kChunk, begin = chunk * kChunk, end = std::min(begin + kChunk, s.T);
    const Stretch at = kForward ? Stretch{item / s.H, item % s.H, chunk, begin, token - begin}
                                : Stretch{item / s.H, item % s.H, chunk, token, end - token};
    const Real* from = state_row<Real>(chunks.state, s, at, kForward ? chunk : std::min(chunk + 1, s.num_chunks()));
    Real* to = out.as<Real>() + item * s.K * s.V;
    if (at.n <= 0) {
      std::copy_n(from, s.K * s.V, to);
    } else {
      carry.make(at);
      carry.compose(from, to);
    }
  }
}

}  // namespace

template <class Real>
void carry_forward(const AttentionInputs& in, const AttentionChunks& chunks) {
  for_each_chunk<ForwardStage<Real>>(in.shape, in, chunks);
}

template <class Real>
void advance_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht) {
  advance<Real, Side::kForward>(in.shape, chunks, chunks.state, h0, ht);
}

template <class Real>
void carry_backward(const AttentionInputs& in, const Tensor& dout, const AttentionChunks& dchunks) {
  for_each_chunk<BackwardStage<Real>>(in.shape, in, dout, dchunks);
}

template <class Real>
void advance_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                      const Tensor& dht, const Tensor& dh0) {
  advance<Real, Side::kBackward>(in.shape, chunks, dchunks.state, dht, dh0);
}

template <class Real>
void state_at(const AttentionInputs& in, const AttentionChunks& chunks, int64_t token, const Tensor& h) {
  compose_part<Real, Side::kForward>(in, chunks, in.v, token, h);
}

template <class Real>
void state_gradient_at(const AttentionInputs& in, const AttentionChunks& dchunks, const Tensor& dout, int64_t token,
                       const Tensor& dh) {
  compose_part<Real, Side::kBackward>(in, dchunks, dout, token, dh);
}

#define BATON_INSTANTIATE(Real)                                                                                      \
  template void carry_forward<Real>(const AttentionInputs&, const AttentionChunks&);                                 \
  template void advance_forward<Real>(const AttentionInputs&, const AttentionChunks&, const Tensor&, const Tensor&); \
  template void carry_backward<Real>(const AttentionInputs&, const Tensor&, const AttentionChunks&);                 \
  template void advance_backward<Real>(const AttentionInputs&, const AttentionChunks&, const AttentionChunks&,       \
                                       const Tensor&, const Tensor&);                                                \
  template void state_at<Real>(const AttentionInputs&, const AttentionChunks&, int64_t, const Tensor&);              \
  template void state_gradient_at<Real>(const AttentionInputs&, const AttentionChunks&, const Tensor&, int64_t,      \
                                        const Tensor&);
BATON_INSTANTIATE(float)
BATON_INSTANTIATE(double)

}  // namespace baton::attention
