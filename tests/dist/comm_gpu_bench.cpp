// What a hand-over of states between GPUs costs:
//   mpirun -np 2 build/tests/comm_gpu_bench [CTAS...]
// For each cap of thread blocks (1 2 4 8 16 unless given), over a communicator made as the state scan's:
//   hand-over  ping-pong between ranks 0 and 1, half a round trip, 50 rounds on the stream, eager and as a CUDA graph
//   exposed    a layer's chain, forward and reversed, of equal work on all ranks: time a layer with hand-over less that
//              without; layers hide one another's messages except for the fill of the chain
// Times are CUDA events' around the whole, of the slowest rank; median of 50.
#include <cstdio>
#include <cstdlib>

#include "comm/device.h"
#include "comm/nccl.h"
#include "comm/state_scan.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"
#include "tests/dist/device_carry.h"
#include "tests/dist/device_timer.h"

namespace baton {
namespace {

constexpr int kRepeats = 50, kRounds = 50, kLayers = 24;
constexpr int64_t kWorkNs = 200'000;  // a layer's work on each rank
const Shape kState{1, 4, 256, 512};   // 2 MiB: a layer of GLA-1.3B, one sequence

void ping_pong(Group& group, const Tensor& x, const Stream& stream) {
  if (group.rank() > 1) return;
  const int other = 1 - group.rank();
  for (int i = 0; i < kRounds; ++i) {
    if (group.rank() == 0) group.send(x, other, stream)->wait();
    group.recv(x, other, stream)->wait();
    if (group.rank() == 1) group.send(x, other, stream)->wait();
  }
}

/// kLayers forward and kLayers reversed; where scan is null the states stay at home. Work that does not need the state
/// stands between begin and finish, the rest after.
struct Chain {
  explicit Chain(Device device) {
    for (int i = 0; i < 2 * kLayers; ++i) states.emplace_back(kState, DType::kFloat32, device);
    scratch = OwnedTensor({256}, DType::kFloat32, device);
  }
  void run(Group& group, StateScan* scan, const Stream& stream) {
    const auto advance = [&](const Tensor& from, const Tensor& to) {
      checks::advance_on_device(group.rank(), 0, from, to, 0, stream);
    };
    const auto work = [&] { checks::advance_on_device(0, 0, scratch, scratch, kWorkNs / 2, stream); };
    for (const Direction direction : {Direction::kForward, Direction::kReversed})
      for (int layer = 0; layer < kLayers; ++layer) {
        const Tensor &entering = states[2 * layer], &leaving = states[2 * layer + 1];
        work();
        if (scan != nullptr) scan->begin(direction, entering, leaving, {advance}, stream);
        work();
        if (scan != nullptr)
          scan->finish(stream);
        else
          advance(entering, leaving);
      }
    if (scan != nullptr) scan->settle();
  }
  std::vector<OwnedTensor> states;
  OwnedTensor scratch;
};

void measure(World& world, Device device, int max_ctas) {
  NcclOptions options = scan_options();
  options.max_ctas = max_ctas;
  const auto group = make_nccl_group(world.group(), device, options);
  group->set_deadline(60);
  const cuda::OwnedStream own(device.index, false);
  const Stream& stream = own.stream();
  const OwnedTensor x(kState, DType::kFloat32, device);
  Timer timer;
  const auto hops = [&](double us) { return us / (2 * kRounds); };
  const double eager = hops(timer.median_us(*group, stream, kRepeats, [&] { ping_pong(*group, x, stream); }));
  const cuda::Graph ping(stream, [&] {
    // A rank without messages must still capture something.
    cuda::set_zero(x.tensor.data, 4, stream);
    ping_pong(*group, x, stream);
  });
  const double graph = hops(timer.median_us(*group, stream, kRepeats, [&] { ping.launch(stream); }));

  Chain chain(device);
  StateScan scan(*group, ScanStrategy::kChain);
  chain.run(*group, &scan, stream);  // neighbours compare shapes
  const double alone = timer.median_us(*group, stream, kRepeats, [&] { chain.run(*group, nullptr, stream); });
  const double handed = timer.median_us(*group, stream, kRepeats, [&] { chain.run(*group, &scan, stream); });
  const cuda::Graph chain_graph(stream, [&] { chain.run(*group, &scan, stream); });
  const cuda::Graph alone_graph(stream, [&] { chain.run(*group, nullptr, stream); });
  const double alone_replayed = timer.median_us(*group, stream, kRepeats, [&] { alone_graph.launch(stream); });
  const double handed_replayed = timer.median_us(*group, stream, kRepeats, [&] { chain_graph.launch(stream); });
  const double bytes = static_cast<double>(x.tensor.bytes());
  if (world.rank() == 0)
    std::printf("%4d %12.1f %8.1f %12.1f %8.1f %14.1f %14.1f\n", max_ctas, eager, bytes / eager * 1e-3, graph,
                bytes / graph * 1e-3, (handed - alone) / (2 * kLayers),
                (handed_replayed - alone_replayed) / (2 * kLayers));
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::World world(&argc, &argv);
  try {
    const auto group = world.group();
    const baton::Device device = baton::select_device("cuda", world, *group);
    if (world.size() < 2) throw baton::Error(baton::ExitCode::kInput, "a hand-over needs 2 ranks");
    std::vector<int> ctas;
    for (int i = 1; i < argc; ++i) ctas.push_back(std::atoi(argv[i]));
    if (ctas.empty()) ctas = {1, 2, 4, 8, 16};
    if (world.rank() == 0)
      std::printf(
          "%s, NCCL %s, %d ranks, 2 MiB a hand-over, %d layers of %ld us, microseconds\n%4s %12s %8s %12s %8s %14s "
          "%14s\n",
          baton::cuda::device_name(device.index).c_str(), baton::nccl_version().c_str(), world.size(), baton::kLayers,
          static_cast<long>(baton::kWorkNs / 1000), "CTAs", "eager", "GB/s", "graph", "GB/s", "exposed/layer",
          "same, graph");
    for (const int max_ctas : ctas) baton::measure(world, device, max_ctas);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", world.rank(), e.what());
    world.abort(1);
  }
  return 0;
}
