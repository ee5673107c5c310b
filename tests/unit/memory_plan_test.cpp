#include "launch/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace baton {
namespace {

/// A rank's memory as layouts have it: fixed, by token of the window, by kept state of each window.
struct Costs {
  int64_t fixed, token, window;
  int64_t operator()(int64_t n, int64_t T_total) const {
    return fixed + token * n + window * std::max<int64_t>((T_total + n - 1) / n, 2);
  }
};

int64_t by_trying(int64_t T_total, int64_t limit, const Costs& costs) {
  int64_t largest = 0;
  for (int64_t n = 1; n <= limit; ++n)
    if (costs(n, std::max(n, T_total)) <= limit) largest = n;
  return largest;
}

TEST(LargestWindow, IsTheOneFoundByTryingAll) {
  int num_none = 0, num_below = 0, num_above = 0;
  for (const Costs& costs : {Costs{100, 3, 0}, Costs{100, 3, 7}, Costs{0, 1, 50}, Costs{50, 20, 1}})
    for (const int64_t T : {1, 2, 5, 64, 97})
      for (int64_t limit = 0; limit < 700; limit += 3) {
        const int64_t expected = by_trying(T, limit, costs);
        ASSERT_EQ(largest_window(T, limit, costs), expected)
            << T << " tokens in " << limit << ": " << costs.fixed << " " << costs.token << " " << costs.window;
        ++(expected == 0 ? num_none : expected < T ? num_below : num_above);
      }
  EXPECT_GT(std::min({num_none, num_below, num_above}), 100);
}

TEST(BesideArena, NcclTakesItsPartWhereRanksTalk) {
  const auto nccl = [](int world_size, int sp) {
    return beside_arena(Topology::make(world_size, 0, sp)).back().second;
  };
  EXPECT_EQ(nccl(1, 1), 0);
  // Measured on two H200; dp 2 has no scan between ranks.
  EXPECT_NEAR(nccl(2, 1), 1310 << 20, 20 << 20);
  EXPECT_NEAR(nccl(2, 2) - nccl(2, 1), 868 << 20, 9 << 20);
  EXPECT_GT(nccl(3, 3), nccl(2, 2));  // a neighbour on both sides
  EXPECT_EQ(nccl(8, 8), nccl(3, 3));
  EXPECT_EQ(total_bytes(beside_arena(Topology::make(1, 0, 1))), int64_t{576} << 20);
}

TEST(MemoryTable, AddsUp) {
  Arena arena(Device{});
  arena.tensor("parameters", {1000}, DType::kFloat32);
  arena.tensor("states", {10}, DType::kFloat64);
  const std::string alone = memory_table(arena, {}), both = memory_table(arena, {{"workspace", 1000}});
  EXPECT_NE(alone.find("  total                           4352  4.2 KiB\n"), std::string::npos) << alone;
  EXPECT_EQ(alone.find("GPU"), std::string::npos);
  EXPECT_EQ(both.substr(0, alone.size()), alone);
  EXPECT_NE(both.find("  total on a GPU                  5352  5.2 KiB\n"), std::string::npos) << both;
}

}  // namespace
}  // namespace baton
