// What handing the state on adds to a layer's attention, in bfloat16, one sequence over all GPUs:
//   mpirun -np 2 build/tests/attention_gpu_bench [TOKENS...]
// TOKENS a rank, 16384 unless given. For each shape, microseconds a layer: forward, and forward with backward, of one
// layer and of 24 in a row, with nothing to do while the state travels; in brackets, what is more than alone.
//   alone      every rank has a sequence of its own
//   stages     as alone, in the stages that a hand-over needs: what a strategy takes beyond it is messages and waiting
//   chain ...  one sequence over all ranks
// Times are CUDA events' around the whole, of the slowest rank; median of 21.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "comm/device.h"
#include "comm/nccl.h"
#include "kernels/elementwise.h"
#include "model/carry.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"
#include "runtime/rng.h"
#include "tests/dist/device_timer.h"

namespace baton {
namespace {

constexpr int kRepeats = 21, kWarmUp = 3, kLayers = 24;

struct Case {
  const char* name;
  int64_t H, K, V;
  GateKind gate;
};
constexpr Case kCases[] = {{"vector H4 256x512", 4, 256, 512, GateKind::kVector},
                           {"fixed H16 128x128", 16, 128, 128, GateKind::kFixed}};

/// One layer's attention on this rank: all tensors of a call.
class Layer {
 public:
  Layer(const Case& c, int64_t tokens, int num_ranks, Device device, const Stream& stream)
      : device_(device), stream_(stream) {
    AttentionShape& s = in_.shape = {1, tokens, c.H, c.K, c.V, c.gate};
    s.span = attention_span(s, kOperand);
    const Shape keys{s.B, s.T, s.H, s.K}, values{s.B, s.T, s.H, s.V};
    in_.scale = 1.0 / 16;
    in_.q = random(keys, kOperand, -1, 1), in_.k = random(keys, kOperand, -1, 1);
    in_.v = random(values, kOperand, -1, 1), dout_ = random(values, kOperand, -1, 1), o_ = empty(values, kOperand);
    in_.gk = random(c.gate == GateKind::kFixed ? Shape{s.H} : keys, DType::kFloat32, -0.1, 0);
    gradients_ = {empty(keys, kOperand), empty(keys, kOperand), empty(values, kOperand), {}, {}};
    if (c.gate == GateKind::kVector) gradients_.dgk = empty(keys, DType::kFloat32);
    for (Tensor* state : {&h0_, &ht_, &dht_, &dh0_}) *state = empty(s.state(), DType::kFloat32);
    const auto make = [this](const Shape& shape, DType dtype) { return empty(shape, dtype); };
    chunks_ = make_attention_chunks(s, DType::kFloat32, false, make);
    dchunks_ = make_attention_chunks(s, DType::kFloat32, true, make);
    OwnedTensor all({num_ranks, s.B}, DType::kInt64);
    std::fill_n(all.tensor.as<int64_t>(), all.tensor.numel(), tokens);
    fixed_ = {to_device(all), empty({s.B, s.H, s.K}, DType::kFloat32)};
  }

  void alone(bool with_backward, int num_layers) const {
    for (int i = 0; i < num_layers; ++i) attention_forward(in_, chunks_, h0_, ht_, o_, stream_);
    for (int i = 0; with_backward && i < num_layers; ++i)
      attention_backward(in_, chunks_, dchunks_, h0_, dout_, dht_, dh0_, gradients_, stream_);
  }

  void stages(StateScan& scan, bool with_backward, int num_layers) const {
    for (int i = 0; i < num_layers; ++i) {
      carry_forward(in_, chunks_, stream_);
      scan.begin(Direction::kForward, h0_, ht_, forward_carry(in_, chunks_, fixed_, stream_), stream_);
      scan.finish(stream_);
      output_forward(in_, chunks_, o_, stream_);
    }
    for (int i = 0; with_backward && i < num_layers; ++i) {
      carry_backward(in_, chunks_, dout_, dchunks_, stream_);
      scan.begin(Direction::kReversed, dht_, dh0_, backward_carry(in_, chunks_, dchunks_, fixed_, stream_), stream_);
      scan.finish(stream_);
      attention_gradients(in_, chunks_, dchunks_, dout_, gradients_, stream_);
    }
    scan.settle();
  }

  int64_t carry_numel() const { return baton::carry_numel(in_.shape); }

 private:
  static constexpr DType kOperand = DType::kBFloat16;

  Tensor empty(const Shape& shape, DType dtype) { return owners_.emplace_back(shape, dtype, device_); }
  Tensor to_device(const Tensor& host) {
    const Tensor x = empty(host.shape, host.dtype);
    copy(host, x, stream_);
    synchronize(stream_);
    return x;
  }
  Tensor random(const Shape& shape, DType dtype, double low, double high) {
    OwnedTensor wide(shape, DType::kFloat32), host(shape, dtype);
    for (int64_t i = 0; i < shape.numel(); ++i)
      wide.tensor.as<float>()[i] = static_cast<float>(low + (high - low) * random_uniform(1, owners_.size(), i));
    convert(wide, host, Stream{});
    return to_device(host);
  }

  Device device_;
  const Stream& stream_;
  std::deque<OwnedTensor> owners_;
  AttentionInputs in_;
  AttentionChunks chunks_, dchunks_;
  AttentionGradients gradients_;
  FixedDecays fixed_;
  Tensor dout_, o_, h0_, ht_, dht_, dh0_;
};

/// One line of the table; run(with_backward, num_layers).
template <class Run>
void row(Group& group, const std::string& name, std::vector<double>& alone, const Stream& stream, const Run& run) {
  std::vector<double> times;
  for (const int num_layers : {1, kLayers})
    for (const bool with_backward : {false, true}) {
      const auto call = [&] { run(with_backward, num_layers); };
      for (int i = 0; i < kWarmUp; ++i) call();
      times.push_back(Timer().median_us(group, stream, kRepeats, call) / num_layers);
    }
  if (alone.empty()) alone = times;
  if (group.rank() != 0) return;
  std::printf("%-38s", name.c_str());
  for (size_t i = 0; i < times.size(); ++i) std::printf(" %9.1f (%+7.1f)", times[i], times[i] - alone[i]);
  std::printf("\n");
}

void compare(Group& group, const Case& c, int64_t tokens, Device device, const Stream& stream) {
  const Layer layer(c, tokens, group.size(), device, stream);
  std::vector<double> alone;
  const auto name = [&](const char* how) { return fmt::format("{:18} {:8} {}", c.name, tokens, how); };
  row(group, name("alone"), alone, stream, [&](bool both, int layers) { layer.alone(both, layers); });
  const auto run_scan = [&](const char* how, Group& ranks, ScanStrategy strategy) {
    const OwnedTensor scratch({StateScan::scratch_numel(strategy, ranks.size(), layer.carry_numel())}, DType::kFloat32,
                              device);
    StateScan scan(ranks, strategy, scratch);
    row(group, name(how), alone, stream, [&](bool both, int layers) { layer.stages(scan, both, layers); });
  };
  run_scan("stages", *make_local_groups(1)[0], ScanStrategy::kChain);
  for (const ScanStrategy strategy : {ScanStrategy::kChain, ScanStrategy::kDoubling, ScanStrategy::kAllGather})
    run_scan(to_string(strategy), group, strategy);
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  using namespace baton;
  World world(&argc, &argv);
  try {
    const auto host = world.group();
    const Device device = select_device("cuda", world, *host);
    const auto group = make_nccl_group(world.group(), device, scan_options());
    group->set_deadline(60);
    const cuda::OwnedStream own(device.index, false);
    if (world.rank() == 0)
      std::printf("%s, NCCL %s, %d ranks, microseconds a layer\n%-38s %19s %19s %19s %19s\n",
                  cuda::device_name(device.index).c_str(), nccl_version().c_str(), world.size(), "shape, tokens",
                  "forward", "with backward", "24 layers: forward", "with backward");
    std::vector<int64_t> lengths;
    for (int i = 1; i < argc; ++i) lengths.push_back(std::atoll(argv[i]));
    if (lengths.empty()) lengths = {16384};
    for (const int64_t tokens : lengths)
      for (const Case& c : kCases) compare(*group, c, tokens, device, own.stream());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", world.rank(), e.what());
    world.abort(1);
  }
  return 0;
}
