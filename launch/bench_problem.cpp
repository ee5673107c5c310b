#include "launch/bench_problem.h"

#include <cmath>

#include "runtime/bfloat16.h"

namespace baton {
namespace {

/// Of gates and states.
DType number_dtype(DType dtype) { return dtype == DType::kBFloat16 ? DType::kFloat32 : dtype; }

/// Bytes of the tensors of one call, and operations of its products over all tokens and heads.
struct Parts {
  double k, v, gates;       // of q, k or a gradient of theirs; of v, o, dout or dv; of all gates
  double product;           // of keys with values, states with queries, ...
  double pairs_k, pairs_v;  // of a chunk's scores; of its scores with values
};

Parts parts_of(const AttentionShape& s, DType dtype) {
  const double tokens = static_cast<double>(s.B * s.T * s.H);
  const auto size = static_cast<double>(size_of(dtype)), gate_size = static_cast<double>(size_of(number_dtype(dtype)));
  const auto K = static_cast<double>(s.K), V = static_cast<double>(s.V);
  double gates = 0;
  if (s.gate == GateKind::kScalar) gates = 1;
  if (s.gate == GateKind::kVector) gates = K;
  if (s.gate == GateKind::kBilinear) gates = K + V;
  return {size * tokens * K,    size * tokens * V,   gate_size * tokens * gates,
          2.0 * tokens * K * V, tokens * kChunk * K, tokens * kChunk * V};
}

template <class Real>
void fill(const Tensor& x, uint64_t seed, double low, double high) {
  Real* values = x.as<Real>();
#pragma omp parallel for
  for (int64_t i = 0; i < x.numel(); ++i) {
    // A counter hashed cheaply: these are hundreds of millions of numbers.
    const uint64_t bits = (static_cast<uint64_t>(i) + (seed << 40)) * 0x9e3779b97f4a7c15ULL;
    const double unit = static_cast<double>(((bits ^ (bits >> 29)) * 0xbf58476d1ce4e5b9ULL) >> 11) * 0x1p-53;
    values[i] = Real(static_cast<float>(low + (high - low) * unit));
  }
}

}  // namespace

BenchWork forward_work(const AttentionShape& s, DType dtype) {
  const Parts p = parts_of(s, dtype);
  return {2 * p.k + 2 * p.v + p.gates, 2 * p.product + p.pairs_k + p.pairs_v};
}

BenchWork backward_work(const AttentionShape& s, DType dtype) {
  const Parts p = parts_of(s, dtype);
  // The state and its gradient are made again beside dq, dk and dv.
  return {4 * p.k + 3 * p.v + 2 * p.gates, 5 * p.product + 3 * p.pairs_k + 2 * p.pairs_v};
}

Tensor BenchProblem::make(const Shape& shape, DType dtype) {
  return owners_.emplace_back(shape, dtype, stream_.device);
}

Tensor BenchProblem::draw(const Shape& shape, DType dtype, double low, double high) {
  const Tensor x = make(shape, dtype);
  const HostView view(x);
  const uint64_t seed = owners_.size();
  if (dtype == DType::kBFloat16) {
    fill<BFloat16>(view.host(), seed, low, high);
  } else {
    dispatch_float(dtype, [&]<class Real>() { fill<Real>(view.host(), seed, low, high); });
  }
  view.upload();
  return x;
}

BenchProblem::BenchProblem(const AttentionShape& s, DType dtype, const Stream& stream) : stream_(stream) {
  const Shape keys{s.B, s.T, s.H, s.K}, values{s.B, s.T, s.H, s.V};
  const DType number = number_dtype(dtype);
  const bool bilinear = s.gate == GateKind::kBilinear, scalar = s.gate == GateKind::kScalar;
  in_.shape = s;
  in_.scale = 1 / std::sqrt(static_cast<double>(s.K));
  in_.q = draw(keys, dtype, -1, 1), in_.k = draw(keys, dtype, -1, 1), in_.v = draw(values, dtype, -1, 1);
  if (s.gate == GateKind::kFixed) in_.gk = draw({s.H}, number, -0.1, 0);
  if (scalar || bilinear || s.gate == GateKind::kVector) {
    const Shape gates = scalar ? Shape{s.B, s.T, s.H} : keys;
    in_.gk = draw(gates, number, -0.1, 0), out_.dgk = make(gates, number);
  }
  if (bilinear) in_.gv = draw(values, number, -0.1, 0), out_.dgv = make(values, number);
  o_ = make(values, dtype), dout_ = draw(values, dtype, -1, 1);
  h0_ = draw(s.state(), number, -1, 1), ht_ = make(s.state(), number);
  dht_ = draw(s.state(), number, -1, 1), dh0_ = make(s.state(), number);
  out_.dq = make(keys, dtype), out_.dk = make(keys, dtype), out_.dv = make(values, dtype);
  const auto make_scratch = [this](const Shape& shape, DType of) {
    const Tensor x = make(shape, of);
    scratch_bytes_ += x.bytes();
    return x;
  };
  chunks_ = make_attention_chunks(s, number, false, make_scratch);
  dchunks_ = make_attention_chunks(s, number, true, make_scratch);
}

void BenchProblem::forward() const { attention_forward(in_, chunks_, {}, {}, o_, stream_); }

void BenchProblem::backward() const { attention_backward(in_, chunks_, dchunks_, {}, dout_, {}, {}, out_, stream_); }

std::vector<BenchProblem::Stage> BenchProblem::stages() const {
  const Parts p = parts_of(in_.shape, in_.q.dtype);
  const auto states = static_cast<double>(chunks_.state.bytes());
  const double steps = 2 * static_cast<double>(in_.shape.B * in_.shape.H * in_.shape.num_spans() * in_.shape.K) *
                       static_cast<double>(in_.shape.V);
  return {
      {"carry_forward", [this] { carry_forward(in_, chunks_, stream_); }, {p.k + p.v + p.gates + states, p.product}},
      {"advance_forward", [this] { advance_forward(in_, chunks_, h0_, ht_, stream_); }, {2 * states, steps}},
      {"output_forward",
       [this] { output_forward(in_, chunks_, o_, stream_); },
       {2 * p.k + 2 * p.v + p.gates + states, p.product + p.pairs_k + p.pairs_v}},
      {"carry_backward",
       [this] { carry_backward(in_, chunks_, dout_, dchunks_, stream_); },
       {p.k + p.v + p.gates + states, p.product}},
      {"advance_backward",
       [this] { advance_backward(in_, chunks_, dchunks_, dht_, dh0_, stream_); },
       {2 * states, steps}},
      {"attention_gradients",
       [this] { attention_gradients(in_, chunks_, dchunks_, dout_, out_, stream_); },
       {4 * p.k + 3 * p.v + 2 * p.gates + 2 * states, 4 * p.product + 3 * p.pairs_k + 2 * p.pairs_v}},
  };
}

}  // namespace baton
