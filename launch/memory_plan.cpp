#include "launch/memory_plan.h"

#include <algorithm>

#include "comm/nccl.h"
#include "runtime/cuda.h"
#include "runtime/log.h"

namespace baton {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// Estimates, for want of a way to ask: a context with the code that a step loads, and of NCCL its buffers, for each
/// channel: 54 MiB of a ring, a tree and neighbours in a group that sums, on the 24 channels that it uses over NVLink
/// where it may choose; 27 for each neighbour in one that hands on. Two H200 with NCCL 2.28: 1,310 and 868 MiB in use.
constexpr int64_t kContextBytes = 512 * kMiB, kSumBytes = 54 * kMiB, kNeighbourBytes = 27 * kMiB;
constexpr int kSumChannels = 24;

int64_t nccl_bytes(const Topology& topology) {
  const int num_neighbours = std::min(topology.sp_size - 1, 2);  // the next rank and the one before
  return (topology.world_size > 1 ? kSumBytes * kSumChannels : 0) +
         kNeighbourBytes * num_neighbours * scan_options().max_ctas;
}

}  // namespace

MemoryRows beside_arena(const Topology& topology) {
  return {
      {"CUDA context and code", kContextBytes}, {"workspace", cuda::kWorkspaceBytes}, {"NCCL", nccl_bytes(topology)}};
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
