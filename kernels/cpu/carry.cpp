// Carries of shards. The checks of every operation, then loops over the rows of all states.
#include "kernels/carry.h"

#include <algorithm>
#include <cmath>

#include "kernels/dispatch.h"

namespace baton {
namespace {

void check_carry(const Carry& c, const Shape& state, bool needs_decays, DType dtype) {
  check_tensor(c.state, "a carry's state", state, dtype);
  CHECK(c.decay_k.defined() || !needs_decays, "a carry lacks its decays");
  if (c.decay_k.defined()) check_tensor(c.decay_k, "a carry's decay_k", {state[0], state[1], state[2]}, dtype);
  if (c.decay_v.defined()) check_tensor(c.decay_v, "a carry's decay_v", {state[0], state[1], state[3]}, dtype);
}

void check_shard(const AttentionShape& s, const AttentionChunks& chunks, const Tensor& states, const Carry& carry) {
  check_tensor(states, "span states", s.span_states(), carry.state.dtype);
  check_tensor(chunks.decay_k, "span decays", s.span_decays(s.K), carry.state.dtype);
  check_carry(carry, s.state(), false, carry.state.dtype);
  const bool bilinear = carry.decay_k.defined() && s.has_decay_v();
  CHECK(carry.decay_v.defined() == bilinear, "decay_v must be there for a bilinear gate, and for no other");
}

/// decay_k[row] * decay_v[.] * from + own, of one row of V numbers; to may be own.
template <class Real>
void advance_row(Real decay, const Real* decay_v, const Real* from, const Real* own, int64_t V, Real* to) {
  if (decay_v == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < V; ++i) to[i] = decay * from[i] + own[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < V; ++i) to[i] = decay * decay_v[i] * from[i] + own[i];
  }
}

/// decay [B, H, dim] = the product over spans of `spans` [B, H, N, dim].
template <class Real>
void multiply_spans(const Tensor& spans, const Tensor& decay) {
  const int64_t heads = spans.dim(0) * spans.dim(1), N = spans.dim(2), dim = spans.dim(3);
  for (int64_t head = 0; head < heads; ++head) {
    Real* to = decay.as<Real>() + head * dim;
    std::fill_n(to, dim, Real{1});
    for (int64_t span = 0; span < N; ++span)
      for (int64_t i = 0; i < dim; ++i) to[i] *= spans.as<Real>()[(head * N + span) * dim + i];
  }
}

template <class Real>
void shard_carry(const AttentionShape& s, const AttentionChunks& chunks, const Tensor& states, bool reversed,
                 const Carry& carry) {
  const int64_t N = s.num_spans();
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < s.B * s.H * s.K; ++row) {
    const int64_t head = row / s.K, k = row % s.K;
    Real* to = carry.state.as<Real>() + row * s.V;
    std::fill_n(to, s.V, Real{});
    for (int64_t step = 0; step < N; ++step) {
      const int64_t span = reversed ? N - 1 - step : step;
      const Real* own = states.as<Real>() + ((head * (N + 1) + span + (reversed ? 0 : 1)) * s.K + k) * s.V;
      const Real* decay_v = s.has_decay_v() ? chunks.decay_v.as<Real>() + (head * N + span) * s.V : nullptr;
      advance_row(chunks.decay_k.as<Real>()[(head * N + span) * s.K + k], decay_v, to, own, s.V, to);
    }
  }
  if (carry.decay_k.defined()) multiply_spans<Real>(chunks.decay_k, carry.decay_k);
  if (carry.decay_v.defined()) multiply_spans<Real>(chunks.decay_v, carry.decay_v);
}

template <class Real>
void multiply(const Tensor& a, const Tensor& b, const Tensor& out) {
  for (int64_t i = 0; i < out.numel(); ++i) out.as<Real>()[i] = a.as<Real>()[i] * b.as<Real>()[i];
}

template <class Real>
void compose_carries(const Carry& first, const Carry& second, const Carry& out) {
  const int64_t H = out.state.dim(1), K = out.state.dim(2), V = out.state.dim(3);
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < out.state.dim(0) * H * K; ++row)
    advance_row(second.decay_k.as<Real>()[row],
                second.decay_v.defined() ? second.decay_v.as<Real>() + row / K * V : nullptr,
                first.state.as<Real>() + row * V, second.state.as<Real>() + row * V, V, out.state.as<Real>() + row * V);
  if (!out.decay_k.defined()) return;
  multiply<Real>(first.decay_k, second.decay_k, out.decay_k);
  if (out.decay_v.defined()) multiply<Real>(first.decay_v, second.decay_v, out.decay_v);
}

}  // namespace

void shard_carry_forward(const AttentionShape& shape, const AttentionChunks& chunks, const Carry& carry,
                         const Stream& stream) {
  check_shard(shape, chunks, chunks.state, carry);
  BATON_ON_CUDA(stream, shard_carry(shape, chunks, chunks.state, false, carry, stream));
  dispatch_float(carry.state.dtype,
                 [&]<class Real>() { shard_carry<Real>(shape, chunks, chunks.state, false, carry); });
}

void shard_carry_backward(const AttentionShape& shape, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                          const Carry& carry, const Stream& stream) {
  check_shard(shape, chunks, dchunks.state, carry);
  BATON_ON_CUDA(stream, shard_carry(shape, chunks, dchunks.state, true, carry, stream));
  dispatch_float(carry.state.dtype,
                 [&]<class Real>() { shard_carry<Real>(shape, chunks, dchunks.state, true, carry); });
}

void compose(const Carry& first, const Carry& second, const Carry& out, const Stream& stream) {
  const bool with_decays = out.decay_k.defined();
  check_carry(first, out.state.shape, with_decays, out.state.dtype);
  check_carry(second, out.state.shape, true, out.state.dtype);
  check_carry(out, out.state.shape, false, out.state.dtype);
  CHECK(!with_decays ||
            (first.decay_v.defined() == out.decay_v.defined() && second.decay_v.defined() == out.decay_v.defined()),
        "carries of different gate kinds are composed");
  BATON_ON_CUDA(stream, compose(first, second, out, stream));
  dispatch_float(out.state.dtype, [&]<class Real>() { compose_carries<Real>(first, second, out); });
}

void fixed_decay(const Tensor& log_decay, const Tensor& tokens, int64_t first, int64_t last, const Tensor& decay_k,
                 const Stream& stream) {
  const int64_t P = tokens.dim(0), B = tokens.dim(1), H = decay_k.dim(1), K = decay_k.dim(2);
  CHECK(0 <= first && first <= last && last <= P, "shards [{}, {}) of {}", first, last, P);
  check_tensor(tokens, "tokens of shards", {P, decay_k.dim(0)}, DType::kInt64);
  if (log_decay.defined()) check_tensor(log_decay, "log_decay", {H}, decay_k.dtype);
  BATON_ON_CUDA(stream, fixed_decay(log_decay, tokens, first, last, decay_k, stream));
  dispatch_float(decay_k.dtype, [&]<class Real>() {
    for (int64_t b = 0; b < B; ++b) {
      int64_t sum = 0;
      for (int64_t p = first; p < last && sum >= 0; ++p) {
        const int64_t n = tokens.as<int64_t>()[p * B + b];
        sum = n < 0 ? -1 : sum + n;
      }
      for (int64_t head = 0; head < H; ++head) {
        const double log = log_decay.defined() && sum > 0 ? static_cast<double>(log_decay.as<Real>()[head]) : 0;
        const auto decay = static_cast<Real>(sum < 0 ? 0 : std::exp(log * static_cast<double>(sum)));
        std::fill_n(decay_k.as<Real>() + (b * H + head) * K, K, decay);
      }
    }
  });
}

}  // namespace baton
