// Times of the attention operator on a CUDA device at 32,768 tokens, stage by stage: the median of CUDA events.
//   build/cuda_attention_bench [--repeat N] [--batch B --tokens T] [--span TOKENS] [NAME...]
// Bytes are those a stage must move with states kept per chunk (tensors once, states as float32); operations those of
// its matrix products, pairs inside a chunk counted in full.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/linear_attention.h"
#include "runtime/bfloat16.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"
#include "runtime/rng.h"

namespace baton {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

struct Options {
  int repeat = 20;
  int64_t batch = 16, tokens = 2048, span = 0;  // span 0: as many tokens as the kernels take
  std::vector<std::string> names;
};

struct Case {
  const char* name;
  int64_t H, K, V;
  GateKind gate;
};
constexpr Case kCases[] = {
    {"vector_h4_256x512", 4, 256, 512, GateKind::kVector},
    {"vector_h16_128x128", 16, 128, 128, GateKind::kVector},
    {"fixed_h16_128x128", 16, 128, 128, GateKind::kFixed},
    {"fixed_h32_64x64", 32, 64, 64, GateKind::kFixed},
    {"scalar_h16_128x128", 16, 128, 128, GateKind::kScalar},
    {"none_h16_128x128", 16, 128, 128, GateKind::kNone},
    {"bilinear_h16_128x128", 16, 128, 128, GateKind::kBilinear},
};

void check(cudaError_t status) { CHECK(status == cudaSuccess, "CUDA: {}", cudaGetErrorString(status)); }

class Problem {
 public:
  Problem(const AttentionShape& s, const Stream& stream) : stream_(stream) {
    const Shape keys{s.B, s.T, s.H, s.K}, values{s.B, s.T, s.H, s.V};
    const DType bf16 = DType::kBFloat16, f32 = DType::kFloat32;
    const bool bilinear = s.gate == GateKind::kBilinear, vector = s.gate == GateKind::kVector || bilinear;
    in_.shape = s;
    in_.scale = 1.0 / 16;
    in_.q = random(keys, bf16, -1, 1), in_.k = random(keys, bf16, -1, 1), in_.v = random(values, bf16, -1, 1);
    const Shape gates = s.gate == GateKind::kScalar ? Shape{s.B, s.T, s.H} : keys;
    if (s.gate == GateKind::kFixed) in_.gk = random({s.H}, f32, -0.1, 0);
    if (vector || s.gate == GateKind::kScalar) in_.gk = random(gates, f32, -0.1, 0), out_.dgk = empty(gates, f32);
    if (bilinear) in_.gv = random(values, f32, -0.1, 0), out_.dgv = empty(values, f32);
    dout_ = random(values, bf16, -1, 1), o_ = empty(values, bf16);
    h0_ = random(s.state(), f32, -1, 1), dht_ = random(s.state(), f32, -1, 1);
    ht_ = empty(s.state(), f32), dh0_ = empty(s.state(), f32);
    out_.dq = empty(keys, bf16), out_.dk = empty(keys, bf16), out_.dv = empty(values, bf16);
    const auto make = [this](const Shape& shape, DType dtype) { return empty(shape, dtype); };
    chunks_ = make_attention_chunks(s, f32, false, make), dchunks_ = make_attention_chunks(s, f32, true, make);
  }

  struct Row {
    const char* name;
    std::function<void()> run;
    double bytes, flops;
  };

  std::vector<Row> rows() const {
    const AttentionShape& s = in_.shape;
    const double tokens = static_cast<double>(s.B * s.T * s.H), states = static_cast<double>(chunks_.state.bytes());
    const double k = 2.0 * s.K * tokens, v = 2.0 * s.V * tokens;  // bytes of q, of v
    const auto size = [](const Tensor& x) { return x.defined() ? static_cast<double>(x.bytes()) : 0.0; };
    const double gates = size(in_.gk) + size(in_.gv), product = 2.0 * tokens * s.K * s.V;
    const double pairs_k = 2.0 * tokens * kChunk * s.K, pairs_v = 2.0 * tokens * kChunk * s.V;
    const Stream& f = stream_;
    std::vector<Row> rows{
        {"carry_forward", [&] { carry_forward(in_, chunks_, f); }, k + v + gates + states, product},
        {"advance_forward", [&] { advance_forward(in_, chunks_, h0_, ht_, f); }, 2 * states, product / kChunk},
        {"output_forward", [&] { output_forward(in_, chunks_, o_, f); }, 2 * k + 2 * v + gates + states,
         product + pairs_k + pairs_v},
        {"carry_backward", [&] { carry_backward(in_, chunks_, dout_, dchunks_, f); }, k + v + gates + states, product},
        {"advance_backward", [&] { advance_backward(in_, chunks_, dchunks_, dht_, dh0_, f); }, 2 * states,
         product / kChunk},
        {"gradients", [&] { attention_gradients(in_, chunks_, dchunks_, dout_, out_, f); },
         4 * k + 3 * v + 2 * gates + 2 * states, 3 * product + 3 * pairs_k + 2 * pairs_v},
    };
    Row forward{"forward", [&] { attention_forward(in_, chunks_, h0_, ht_, o_, f); }, 0, 0};
    Row both{"forward+backward",
             [&] {
               attention_forward(in_, chunks_, h0_, ht_, o_, f);
               attention_backward(in_, chunks_, dchunks_, h0_, dout_, dht_, dh0_, out_, f);
             },
             0, 0};
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i < 3) forward.bytes += rows[i].bytes, forward.flops += rows[i].flops;
      both.bytes += rows[i].bytes, both.flops += rows[i].flops;
    }
    rows.push_back(forward), rows.push_back(both);
    return rows;
  }

  double scratch_bytes() const {
    double bytes = 0;
    for (const Tensor* x : {&chunks_.state, &chunks_.decay_k, &chunks_.decay_v, &chunks_.work, &dchunks_.state}) {
      if (x->defined()) bytes += static_cast<double>(x->bytes());
    }
    return bytes;
  }

 private:
  Tensor empty(const Shape& shape, DType dtype) { return owners_.emplace_back(shape, dtype, kGpu); }
  Tensor random(const Shape& shape, DType dtype, double low, double high) {
    OwnedTensor host(shape, dtype);
    const uint64_t seed = owners_.size() + 1;
    for (int64_t i = 0; i < host.tensor.numel(); ++i) {
      // A counter hashed cheaply: these are hundreds of millions of numbers.
      const uint64_t bits = (static_cast<uint64_t>(i) + (seed << 40)) * 0x9e3779b97f4a7c15ULL;
      const double unit = static_cast<double>((bits ^ bits >> 29) * 0xbf58476d1ce4e5b9ULL >> 11) * 0x1p-53;
      const auto x = static_cast<float>(low + (high - low) * unit);
      if (dtype == DType::kBFloat16) {
        host.tensor.as<BFloat16>()[i] = BFloat16(x);
      } else {
        host.tensor.as<float>()[i] = x;
      }
    }
    const Tensor x = empty(shape, dtype);
    copy(host, x, stream_);
    synchronize(stream_);
    return x;
  }

  Stream stream_;
  std::vector<OwnedTensor> owners_;
  AttentionInputs in_;
  AttentionChunks chunks_, dchunks_;
  AttentionGradients out_;
  Tensor dout_, o_, h0_, ht_, dht_, dh0_;
};

/// Median microseconds of one call between two events.
double median_us(const Stream& stream, int repeat, const std::function<void()>& call) {
  const auto queue = static_cast<cudaStream_t>(stream.handle);
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) call();
  std::vector<float> times;
  for (int i = 0; i < repeat; ++i) {
    check(cudaEventRecord(begin, queue));
    call();
    check(cudaEventRecord(end, queue));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&times.emplace_back(), begin, end));
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + repeat / 2, times.end());
  return 1e3 * times[repeat / 2];
}

void run(const Case& c, const Options& options, const Stream& stream) {
  AttentionShape shape{options.batch, options.tokens, c.H, c.K, c.V, c.gate};
  shape.span = attention_span(shape, DType::kBFloat16);
  if (options.span > 0 && shape.span > kChunk) shape.span = options.span;
  const Problem problem(shape, stream);
  fmt::print("{} B {} T {} span {}  scratch {:.0f} MiB\n", c.name, shape.B, shape.T, shape.span,
             problem.scratch_bytes() / (1 << 20));
  const std::vector<Problem::Row> rows = problem.rows();
  for (const Problem::Row& row : rows) row.run();  // every stage has its inputs from here on
  for (const Problem::Row& row : rows) {
    const double us = median_us(stream, options.repeat, row.run);
    fmt::print("  {:<18}{:>9.1f} us {:>7.0f} GB/s {:>7.1f} TFLOP/s\n", row.name, us, row.bytes / us * 1e-3,
               row.flops / us * 1e-6);
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("--", 0) != 0) {
      options.names.push_back(word);
      continue;
    }
    CHECK_INPUT(i + 1 < argc, "{} needs a value", word);
    const int64_t value = std::atoll(argv[++i]);
    CHECK_INPUT(value > 0, "{} = {}: must be at least 1", word, argv[i]);
    CHECK_INPUT(word == "--repeat" || word == "--batch" || word == "--tokens" || word == "--span", "unknown flag {}",
                word);
    if (word == "--repeat") options.repeat = static_cast<int>(value);
    if (word == "--batch") options.batch = value;
    if (word == "--tokens") options.tokens = value;
    if (word == "--span") options.span = value;
  }
  return options;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  using namespace baton;
  try {
    const Options options = parse(argc, argv);
    CHECK_INPUT(cuda::num_devices() > 0, "no CUDA device");
    cuda::set_device(0);
    const cuda::OwnedStream stream(0, false);
    fmt::print("on {}, median of {}\n", cuda::device_name(0), options.repeat);
    for (const Case& c : kCases) {
      const auto& names = options.names;
      if (names.empty() || std::find(names.begin(), names.end(), c.name) != names.end())
        run(c, options, stream.stream());
    }
  } catch (const Error& error) {
    fmt::print("{}\n", error.describe());
    return static_cast<int>(error.code());
  }
}
