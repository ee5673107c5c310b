#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <deque>
#include <random>
#include <span>

#include "launch/bench.h"
#include "runtime/memory.h"

namespace baton {
namespace {

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
  std::minstd_rand draw(static_cast<unsigned>(owners_.size()));
  const double step = (high - low) / static_cast<double>(std::minstd_rand::max());
  dispatch_float(dtype_, [&]<class Real>() {
    for (Real& value : std::span(x.as<Real>(), x.numel())) value = static_cast<Real>(low + step * draw());
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
  const auto make_scratch = [this](const Shape& shape, DType) { return make(shape); };
  chunks_ = make_attention_chunks(s, dtype, false, make_scratch);
  dchunks_ = make_attention_chunks(s, dtype, true, make_scratch);
}

/// Wall and processor seconds so far.
struct Clock {
  double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  double processor_s = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
};

void record(BenchTime& time, const Clock& start, const Clock& end, size_t calls) {
  time.wall_s.push_back((end.wall_s - start.wall_s) / static_cast<double>(calls));
  time.processor_s.push_back((end.processor_s - start.processor_s) / static_cast<double>(calls));
}

/// The sets of one case, and what was measured on them.
struct Measured {
  Measured(const AttentionShape& s, const BenchOptions& options) {
    const int64_t tokens = s.B * s.T, num_sets = std::max<int64_t>(1, options.tokens / tokens);
    for (int64_t i = 0; i < num_sets; ++i) {
      const BenchProblem& set = sets.emplace_back(s, options.dtype);
      set.forward();  // touches the pages
      set.backward();
    }
    result.forward.flops = 4 * static_cast<double>(tokens * s.H * s.K * s.V);
    result.both.flops = 3 * result.forward.flops;
  }
  void walk() {
    const Clock start;
    for (const BenchProblem& set : sets) set.forward();
    const Clock middle;
    for (const BenchProblem& set : sets) set.backward();
    const Clock end;
    record(result.forward, start, middle, sets.size());
    record(result.both, start, end, sets.size());
  }

  std::deque<BenchProblem> sets;
  BenchResult result;
};

}  // namespace

double median(std::vector<double> values) {
  CHECK(!values.empty(), "there is no median of no values");
  std::ranges::sort(values);
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

std::vector<BenchResult> bench_operator(const std::vector<BenchCase>& cases, const BenchOptions& options) {
  std::deque<Measured> all;
  for (const BenchCase& c : cases) all.emplace_back(c.shape, options);
  for (int64_t i = 0; i < options.repeat; ++i)
    for (Measured& m : all) m.walk();
  std::vector<BenchResult> results;
  for (Measured& m : all) results.push_back(std::move(m.result));
  return results;
}

}  // namespace baton
