// Sums of gradients, as the end of a step begins them: buckets one after another, on a GPU beside its backward. There
// they take thread blocks and memory from the work, here matrix products that last longer than they do.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/matmul.h"
#include "launch/bench.h"
#include "launch/group_timer.h"
#include "runtime/log.h"

namespace baton {

std::string bench_sums(const BenchOptions& options, const Ranks& ranks) {
  constexpr int64_t kBytes = GradientReduction::kBucketBytes, kSums = 4, kProducts = 4, kDim = 8192;
  const Stream& stream = ranks.stream;
  const OwnedTensor gradients({kBytes / 4}, DType::kFloat32, stream.device);
  set_zero(gradients, stream);
  GroupTimer timer(*ranks.world, stream, options.repeat);
  const auto seconds_of = [&](int64_t num_sums, const std::function<void()>& work) {
    return timer.median_of([&] {
      std::vector<PendingPtr> sums;
      for (int64_t i = 0; i < num_sums; ++i)
        sums.push_back(ranks.world->begin_all_reduce(gradients, ReduceOp::kSum, stream));
      work();
      for (const PendingPtr& sum : sums) sum->wait();
    });
  };
  const double alone = seconds_of(kSums, [] {}), sum_s = alone / kSums;
  const auto P = static_cast<double>(ranks.world->size());
  const double bandwidth = 1e-9 * 2 * (P - 1) / P * static_cast<double>(kBytes) / sum_s;
  nlohmann::json json{{"case", "gradient sum"}, {"bytes", kBytes}, {"us", 1e6 * sum_s}, {"GB/s", bandwidth}};
  std::string keys = fmt::format("--plan.sum_bandwidth {:.3g}", bandwidth);
  if (stream.device.type == DeviceType::kCuda) {
    const OwnedTensor a({kDim, kDim}, options.dtype, stream.device), b({kDim, kDim}, options.dtype, stream.device),
        c({kDim, kDim}, options.dtype, stream.device);
    const auto products = [&] {
      for (int64_t i = 0; i < kProducts; ++i) matmul(a, Trans::kNo, b, Trans::kNo, c, 0.0, stream);
    };
    const double work = seconds_of(0, products), both = seconds_of(kSums, products);
    const double exposed = std::clamp((both - work) / alone, 0.0, 1.0);
    json.update({{"products us", 1e6 * work}, {"products and sums us", 1e6 * both}, {"exposed", exposed}});
    keys += fmt::format(" --plan.sum_exposed {:.2f}", exposed);
  }
  if (ranks.topology.world_rank == 0)
    fmt::print("sum of {} of gradients: {:.1f} us, {}\n", format_bytes(kBytes), 1e6 * sum_s, keys);
  return json.dump() + "\n";
}

}  // namespace baton
