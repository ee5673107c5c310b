#include "launch/memory_plan.h"

#include "comm/nccl.h"
#include "runtime/cuda.h"
#include "runtime/log.h"

namespace baton {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// Estimates, for want of a way to ask: a context with the code that a step loads, and of NCCL its buffers, 9 MiB a
/// channel (LL 0.5, LL128 4.7, Simple 4) for each of ring, tree and neighbours in two directions, on the 24 channels
/// that it uses over NVLink unless it is given fewer. Two H200 with NCCL 2.28: 1,454 MiB in use for both groups.
constexpr int64_t kContextBytes = 512 * kMiB, kChannelBytes = 2 * 3 * 9 * kMiB;
constexpr int kChannels = 24;

int64_t nccl_bytes(int num_ranks, const NcclOptions& options) {
  if (num_ranks == 1) return 0;
  return kChannelBytes * (options.max_ctas > 0 ? options.max_ctas : kChannels);
}

}  // namespace

MemoryRows beside_arena(const Topology& topology) {
  return {{"CUDA context and code", kContextBytes},
          {"workspace", cuda::kWorkspaceBytes},
          {"NCCL", nccl_bytes(topology.sp_size, scan_options()) + nccl_bytes(topology.world_size, gradient_options())}};
}

int64_t total_bytes(const MemoryRows& rows) {
  int64_t sum = 0;
  for (const auto& [what, bytes] : rows) sum += bytes;
  return sum;
}

std::string memory_table(const Arena& arena, const MemoryRows& beside) {
  std::string text = fmt::format("{:<24}{:>14}\n", "memory a rank", "bytes");
  const auto row = [&](const std::string& what, int64_t bytes) {
    text += fmt::format("  {:<22}{:>14}  {}\n", what, bytes, format_bytes(bytes));
  };
  for (const auto& [group, bytes] : arena.bytes_by_group()) row(group, bytes);
  row("total", arena.used_bytes());
  if (beside.empty()) return text;
  text += "beside it on a GPU, estimated\n";
  for (const auto& [what, bytes] : beside) row(what, bytes);
  row("total on a GPU", arena.used_bytes() + total_bytes(beside));
  return text;
}

int64_t largest_window(int64_t T_total, int64_t limit, const BytesOf& bytes_of) {
  const auto fits = [&](int64_t window) { return bytes_of(window, std::max(window, T_total)) <= limit; };
  int64_t good = T_total, bad = T_total;  // the answer lies in [good, bad)
  for (int64_t W = 1; !fits(good); ++W) {
    if (good == 1 || bytes_of(1, W + 1) > limit) return 0;  // the states of more windows leave no room
    bad = good;
    good = (T_total + W) / (W + 1);
  }
  if (good == T_total)
    for (bad = 2 * good; fits(bad); bad *= 2) good = bad;
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace baton
