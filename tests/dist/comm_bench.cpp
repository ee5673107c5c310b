// What the transport costs on this host:
//   mpirun -np 4 --bind-to none build/tests/comm_bench
// Hand-over: time from the first rank's begin to the last rank's finish of a chain scan whose advance copies, over the
// number of hops; all ranks wait for it, as the layers of a model do. All-reduce: one flat tensor over all ranks.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "comm/state_scan.h"
#include "comm/world.h"
#include "runtime/memory.h"

namespace baton {
namespace {

const Stream kHost{};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// Seconds from the first rank's begin to the last rank's finish. steady_clock is one clock for all ranks of a host.
double scan_seconds(Group& group, int64_t bytes, int repeats) {
  OwnedTensor entering({1, 1, 1, bytes / 4}, DType::kFloat32), leaving({1, 1, 1, bytes / 4}, DType::kFloat32);
  StateScan scan(group, ScanStrategy::kChain);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    group.barrier();
    double start = now();
    scan.begin(Direction::kForward, entering, leaving,
               {[](const Tensor& from, const Tensor& to) { copy(from, to, kHost); }}, kHost);
    scan.finish(kHost);
    const double end = all_reduce(group, group.rank() + 1 == group.size() ? now() : 0, ReduceOp::kMax);
    start = all_reduce(group, group.rank() == 0 ? start : 0, ReduceOp::kMax);
    seconds.push_back(end - start);
  }
  return median(seconds);
}

double all_reduce_seconds(Group& group, int64_t bytes, int repeats) {
  OwnedTensor x({bytes / 4}, DType::kFloat32);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    group.barrier();
    const double start = now();
    group.all_reduce(x, ReduceOp::kSum, kHost);
    seconds.push_back(now() - start);
  }
  return all_reduce(group, median(seconds), ReduceOp::kMax);
}

void run(Group& group) {
  const int hops = std::max(1, group.size() - 1);
  for (const int64_t bytes : {int64_t{8} << 10, int64_t{256} << 10, int64_t{2} << 20}) {
    const double seconds = scan_seconds(group, bytes, 101);
    if (group.rank() == 0)
      std::printf("hand-over of %7ld bytes: %8.1f us a hop, %d ranks\n", bytes, seconds / hops * 1e6, group.size());
  }
  for (const int64_t bytes : {int64_t{4} << 20, int64_t{64} << 20}) {
    const double seconds = all_reduce_seconds(group, bytes, 11);
    if (group.rank() == 0) std::printf("all_reduce of %8ld bytes: %8.2f ms\n", bytes, seconds * 1e3);
  }
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::World world(&argc, &argv);
  const auto group = world.group();
  baton::run(*group);
  return 0;
}
