// Processor time of the attention operator a token and head, forward and backward, over the benchmark shapes.
//   OMP_NUM_THREADS=1 build/linear_attention_benchmark [NAME]
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

#include "kernels/shapes.h"
#include "runtime/memory.h"
#include "runtime/rng.h"

namespace baton {
namespace {

struct Problem {
  AttentionInputs in;
  AttentionChunks chunks, dchunks;
  AttentionGradients out;
  Tensor o, dout, h0, ht, dht, dh0;
  std::vector<OwnedTensor> owners;

  Tensor tensor(const Shape& shape, double low, double high) {
    const Tensor& x = owners.emplace_back(shape, DType::kFloat32);
    for (int64_t i = 0; i < x.numel(); ++i) {
      x.as<float>()[i] = static_cast<float>(low + (high - low) * random_uniform(1, owners.size(), i));
    }
    return x;
  }

  explicit Problem(const AttentionShape& s) {
    const Shape keys{s.B, s.T, s.H, s.K}, values{s.B, s.T, s.H, s.V};
    owners.reserve(32);
    in.shape = s;
    in.q = tensor(keys, -1, 1), in.k = tensor(keys, -1, 1), in.v = tensor(values, -1, 1);
    const bool vector = s.gate == GateKind::kVector || s.gate == GateKind::kBilinear;
    if (s.gate == GateKind::kFixed) in.gk = tensor({s.H}, -0.1, 0);
    if (vector) in.gk = tensor(keys, -0.1, 0), out.dgk = tensor(keys, 0, 0);
    if (s.gate == GateKind::kBilinear) in.gv = tensor(values, -0.1, 0), out.dgv = tensor(values, 0, 0);
    o = tensor(values, 0, 0), dout = tensor(values, -1, 1);
    h0 = tensor(s.state(), -1, 1), ht = tensor(s.state(), 0, 0);
    dht = tensor(s.state(), -1, 1), dh0 = tensor(s.state(), 0, 0);
    out.dq = tensor(keys, 0, 0), out.dk = tensor(keys, 0, 0), out.dv = tensor(values, 0, 0);
    chunks.state = tensor(s.chunk_states(), 0, 0), dchunks.state = tensor(s.chunk_states(), 0, 0);
    chunks.decay_k = tensor({s.B, s.H, s.num_chunks(), s.K}, 0, 0);
    if (s.gate == GateKind::kBilinear) chunks.decay_v = tensor({s.B, s.H, s.num_chunks(), s.V}, 0, 0);
  }

  void forward() const {
    carry_forward(in, chunks, {});
    advance_forward(in, chunks, h0, ht, {});
    output_forward(in, chunks, o, {});
  }
  void backward() const {
    carry_backward(in, chunks, dout, dchunks, {});
    advance_backward(in, chunks, dchunks, dht, dh0, {});
    attention_gradients(in, chunks, dchunks, dout, out, {});
  }
};

/// Processor seconds of one call, all threads together: the least of many, since other work on the machine disturbs.
double seconds(const std::function<void()>& call) {
  double least = 1e9, total = 0;
  call();
  for (int i = 0; i < 5 || (total < 0.5 && i < 1000); ++i) {
    const std::clock_t begin = std::clock();
    call();
    const double time = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    least = std::min(least, time);
    total += time;
  }
  return least;
}

void run(const NamedShape& named) {
  const AttentionShape& s = named.shape;
  const Problem p(s);
  const double forward = seconds([&] { p.forward(); }), backward = seconds([&] { p.backward(); });
  const double unit = 1e9 / static_cast<double>(s.B * s.T * s.H);
  fmt::print("{:<16} T {:>6} H {} K {:>3} V {:>3}  {:>7.1f} {:>7.1f} {:>7.1f}\n", named.name, s.T, s.H, s.K, s.V,
             forward * unit, backward * unit, (forward + backward) * unit);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  fmt::print("nanoseconds a token and head, float32: forward, backward, both (the least of many calls)\n");
  for (const baton::NamedShape& named : baton::kBenchmarkShapes) {
    if (argc < 2 || std::strstr(named.name, argv[1]) != nullptr) baton::run(named);
  }
}
