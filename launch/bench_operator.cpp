#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <deque>

#include "launch/bench.h"
#include "runtime/memory.h"
#include "runtime/rng.h"

namespace baton {
namespace {

constexpr int64_t kTokensMeasured = 65536;

/// All tensors of one call; inputs uniform in [-1, 1], log gates in [-0.1, 0].
class BenchProblem {
 public:
  BenchProblem(const AttentionShape& s, DType dtype);

  void forward() const {
    carry_forward(in_, chunks_, kHost);
    advance_forward(in_, chunks_, h0_, ht_, kHost);
    output_forward(in_, chunks_, o_, kHost);
  }
  void backward() const {
    carry_backward(in_, chunks_, dout_, dchunks_, kHost);
    advance_backward(in_, chunks_, dchunks_, dht_, dh0_, kHost);
    attention_gradients(in_, chunks_, dchunks_, dout_, out_, kHost);
  }

 private:
  static constexpr Stream kHost{};
  Tensor make(const Shape& shape, double low = 0, double high = 0);

  DType dtype_;
  std::deque<OwnedTensor> owners_;
  AttentionInputs in_;
  AttentionChunks chunks_, dchunks_;
  AttentionGradients out_;
  Tensor o_, dout_, h0_, ht_, dht_, dh0_;
};

Tensor BenchProblem::make(const Shape& shape, double low, double high) {
  const Tensor x = owners_.emplace_back(shape, dtype_);
  if (low == high) return x;
  dispatch_float(dtype_, [&]<class Real>() {
    for (int64_t i = 0; i < x.numel(); ++i)
      x.as<Real>()[i] =
          static_cast<Real>(low + (high - low) * random_uniform(1, owners_.size(), static_cast<uint64_t>(i)));
  });
  return x;
}

BenchProblem::BenchProblem(const AttentionShape& s, DType dtype) : dtype_(dtype) {
  const Shape keys{s.B, s.T, s.H, s.K}, values{s.B, s.T, s.H, s.V};
  const bool bilinear = s.gate == GateKind::kBilinear, scalar = s.gate == GateKind::kScalar;
  in_.shape = s;
  in_.scale = 1 / std::sqrt(static_cast<double>(s.K));
  in_.q = make(keys, -1, 1), in_.k = make(keys, -1, 1), in_.v = make(values, -1, 1);
  if (s.gate == GateKind::kFixed) in_.gk = make({s.H}, -0.1, 0);
  if (scalar || bilinear || s.gate == GateKind::kVector) {
    const Shape gates = scalar ? Shape{s.B, s.T, s.H} : keys;
    in_.gk = make(gates, -0.1, 0), out_.dgk = make(gates);
  }
  if (bilinear) in_.gv = make(values, -0.1, 0), out_.dgv = make(values);
  o_ = make(values), dout_ = make(values, -1, 1);
  h0_ = make(s.state(), -1, 1), ht_ = make(s.state());
  dht_ = make(s.state(), -1, 1), dh0_ = make(s.state());
  out_.dq = make(keys), out_.dk = make(keys), out_.dv = make(values);
  chunks_.state = make(s.chunk_states()), dchunks_.state = make(s.chunk_states());
  chunks_.decay_k = make({s.B, s.H, s.num_chunks(), s.K});
  if (bilinear) chunks_.decay_v = make({s.B, s.H, s.num_chunks(), s.V});
}

/// Wall and processor seconds so far.
struct Clock {
  double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  double processor_s = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
};

void keep_least(BenchTime& least, const Clock& start, const Clock& end, double calls) {
  least.wall_s = std::min(least.wall_s, (end.wall_s - start.wall_s) / calls);
  least.processor_s = std::min(least.processor_s, (end.processor_s - start.processor_s) / calls);
}

}  // namespace

BenchResult bench_operator(const AttentionShape& s, DType dtype, int64_t repeat) {
  const BenchProblem problem(s, dtype);
  const int64_t tokens = s.B * s.T;
  // Every measurement takes about as many tokens, so that the clock's grain and other work weigh the same in all.
  const int64_t calls = std::max<int64_t>(1, kTokensMeasured / std::max<int64_t>(tokens, 1));
  const double flops = 4 * static_cast<double>(tokens * s.H * s.K * s.V);
  BenchResult r{{INFINITY, INFINITY, flops}, {INFINITY, INFINITY, 3 * flops}};
  problem.forward();  // warms caches and pages
  problem.backward();
  for (int64_t i = 0; i < repeat; ++i) {
    const Clock start;
    for (int64_t c = 0; c < calls; ++c) problem.forward();
    const Clock middle;
    for (int64_t c = 0; c < calls; ++c) {
      problem.forward();
      problem.backward();
    }
    const Clock end;
    keep_least(r.forward, start, middle, static_cast<double>(calls));
    keep_least(r.both, middle, end, static_cast<double>(calls));
  }
  return r;
}

}  // namespace baton
