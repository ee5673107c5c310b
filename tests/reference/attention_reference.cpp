#include "tests/reference/attention_reference.h"

#include <algorithm>
#include <cmath>

#include "runtime/rng.h"

namespace baton::test {
namespace {

/// Index arithmetic of one sequence and head.
struct Head {
  const AttentionProblem& problem;
  int64_t b, h;

  int64_t token(int64_t t) const { return (b * problem.shape.T + t) * problem.shape.H + h; }
  int64_t state() const { return (b * problem.shape.H + h) * problem.shape.K * problem.shape.V; }
  bool is_start(int64_t t) const { return !problem.starts.empty() && problem.starts[b * problem.shape.T + t] != 0; }
  double gate_k(int64_t t, int64_t c) const {
    switch (problem.shape.gate) {
      case GateKind::kNone:
        return 0.0;
      case GateKind::kFixed:
        return problem.gk[h];
      case GateKind::kScalar:
        return problem.gk[token(t)];
      default:
        return problem.gk[token(t) * problem.shape.K + c];
    }
  }
  double gate_v(int64_t t, int64_t c) const {
    return problem.shape.gate == GateKind::kBilinear ? problem.gv[token(t) * problem.shape.V + c] : 0.0;
  }
};

/// What token t multiplies the state by: key[i] * value[j].
struct TokenDecay {
  std::vector<double> key, value;
  TokenDecay(const Head& at, int64_t t) : key(at.problem.shape.K), value(at.problem.shape.V) {
    for (size_t c = 0; c < key.size(); ++c) key[c] = at.is_start(t) ? 0.0 : std::exp(at.gate_k(t, c));
    for (size_t c = 0; c < value.size(); ++c) value[c] = std::exp(at.gate_v(t, c));
  }
};

/// Fills o and ht; returns the states, number t being the one that enters token t.
std::vector<double> forward(const Head& at, AttentionResult& result) {
  const AttentionProblem& p = at.problem;
  const int64_t T = p.shape.T, K = p.shape.K, V = p.shape.V;
  std::vector<double> states((T + 1) * K * V);
  std::copy_n(p.h0.begin() + at.state(), K * V, states.begin());
  double* o = result["o"].data();
  for (int64_t t = 0; t < T; ++t) {
    const double* before = states.data() + t * K * V;
    double* after = states.data() + (t + 1) * K * V;
    const int64_t key = at.token(t) * K, value = at.token(t) * V;
    const TokenDecay decay(at, t);
    for (int64_t i = 0; i < K; ++i) {
      for (int64_t j = 0; j < V; ++j) {
        after[i * V + j] = decay.key[i] * decay.value[j] * before[i * V + j] + p.k[key + i] * p.v[value + j];
        o[value + j] += p.scale * p.q[key + i] * after[i * V + j];
      }
    }
  }
  std::copy_n(states.end() - K * V, K * V, result["ht"].begin() + at.state());
  return states;
}

void backward(const Head& at, const std::vector<double>& states, AttentionResult& result) {
  const AttentionProblem& p = at.problem;
  const int64_t K = p.shape.K, V = p.shape.V;
  const bool scalar = p.shape.gate == GateKind::kScalar, bilinear = p.shape.gate == GateKind::kBilinear;
  const bool vector = p.shape.gate == GateKind::kVector || bilinear;
  std::vector<double> dh(p.dht.begin() + at.state(), p.dht.begin() + at.state() + K * V);
  double *dq = result["dq"].data(), *dk = result["dk"].data(), *dv = result["dv"].data();
  double* dgk = scalar || vector ? result["dgk"].data() : nullptr;
  double* dgv = bilinear ? result["dgv"].data() : nullptr;
  for (int64_t t = p.shape.T - 1; t >= 0; --t) {
    const double* before = states.data() + t * K * V;
    const double* after = before + K * V;
    const int64_t key = at.token(t) * K, value = at.token(t) * V;
    const TokenDecay decay(at, t);
    for (int64_t i = 0; i < K; ++i) {
      for (int64_t j = 0; j < V; ++j) {
        double& d = dh[i * V + j];
        d += p.scale * p.q[key + i] * p.dout[value + j];
        dq[key + i] += p.scale * p.dout[value + j] * after[i * V + j];
        dk[key + i] += d * p.v[value + j];
        dv[value + j] += d * p.k[key + i];
        d *= decay.key[i] * decay.value[j];
        if (dgk != nullptr) dgk[scalar ? at.token(t) : key + i] += d * before[i * V + j];
        if (dgv != nullptr) dgv[value + j] += d * before[i * V + j];
      }
    }
  }
  std::copy(dh.begin(), dh.end(), result["dh0"].begin() + at.state());
}

}  // namespace

AttentionResult token_reference(const AttentionProblem& p) {
  AttentionResult result;
  result["o"].resize(p.v.size());
  result["ht"].resize(p.h0.size());
  result["dh0"].resize(p.h0.size());
  result["dq"].resize(p.q.size());
  result["dk"].resize(p.k.size());
  result["dv"].resize(p.v.size());
  if (p.shape.gate != GateKind::kNone && p.shape.gate != GateKind::kFixed) result["dgk"].resize(p.gk.size());
  if (p.shape.gate == GateKind::kBilinear) result["dgv"].resize(p.gv.size());
  for (int64_t b = 0; b < p.shape.B; ++b) {
    for (int64_t h = 0; h < p.shape.H; ++h) {
      const Head at{p, b, h};
      backward(at, forward(at, result), result);
    }
  }
  return result;
}

namespace {

/// Output of token i; sums of gates run backward from it, so none is a difference.
void quadratic_token(const Head& at, int64_t i, double* out) {
  const AttentionProblem& p = at.problem;
  const int64_t K = p.shape.K, V = p.shape.V;
  std::vector<double> sum_k(K), sum_v(V);
  const double* q = &p.q[at.token(i) * K];
  for (int64_t j = i; j >= 0; --j) {
    double score = 0;
    for (int64_t c = 0; c < K; ++c) score += p.scale * q[c] * p.k[at.token(j) * K + c] * std::exp(sum_k[c]);
    for (int64_t c = 0; c < V; ++c) out[c] += score * p.v[at.token(j) * V + c] * std::exp(sum_v[c]);
    for (int64_t c = 0; c < K; ++c) sum_k[c] += at.gate_k(j, c);
    for (int64_t c = 0; c < V; ++c) sum_v[c] += at.gate_v(j, c);
    if (at.is_start(j)) return;
  }
  const double* h0 = &p.h0[at.state()];
  for (int64_t k = 0; k < K; ++k) {
    for (int64_t c = 0; c < V; ++c) out[c] += p.scale * q[k] * std::exp(sum_k[k]) * h0[k * V + c] * std::exp(sum_v[c]);
  }
}

}  // namespace

std::vector<double> quadratic_reference(const AttentionProblem& p) {
  std::vector<double> o(p.v.size());
  for (int64_t b = 0; b < p.shape.B; ++b) {
    for (int64_t h = 0; h < p.shape.H; ++h) {
      const Head at{p, b, h};
      for (int64_t i = 0; i < p.shape.T; ++i) quadratic_token(at, i, &o[at.token(i) * p.shape.V]);
    }
  }
  return o;
}

AttentionProblem random_problem(const AttentionShape& s, uint64_t seed) {
  uint64_t stream = 0;
  const auto normal = [&](int64_t count) {
    std::vector<double> x(count);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random_normal(seed, stream, i));
    ++stream;
    return x;
  };
  const auto gates = [&](int64_t count) {
    std::vector<double> x = normal(count);
    for (double& g : x) g = static_cast<float>(-std::log1p(std::exp(-g)) / 16);
    return x;
  };
  const int64_t tokens = s.B * s.T * s.H, states = s.B * s.H * s.K * s.V;
  AttentionProblem p;
  p.shape = s;
  p.scale = 1.0 / std::sqrt(static_cast<double>(s.K));
  p.q = normal(tokens * s.K), p.k = normal(tokens * s.K), p.v = normal(tokens * s.V);
  p.h0 = normal(states), p.dht = normal(states), p.dout = normal(tokens * s.V);
  for (int64_t i = 0; i < s.H && s.gate == GateKind::kFixed; ++i) {
    p.gk.push_back(static_cast<float>(-std::exp2(-8.0 * static_cast<double>(i + 1) / static_cast<double>(s.H))));
  }
  if (s.gate == GateKind::kScalar) p.gk = gates(tokens);
  if (s.gate == GateKind::kVector || s.gate == GateKind::kBilinear) p.gk = gates(tokens * s.K);
  if (s.gate == GateKind::kBilinear) p.gv = gates(tokens * s.V);
  return p;
}

}  // namespace baton::test
