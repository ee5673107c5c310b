#include <gtest/gtest.h>

#include <thread>

#include "runtime/profiler.h"

namespace baton {
namespace {

TEST(RangePath, SaysWhereTheThreadIs) {
  EXPECT_EQ(current_ranges().str(), "");
  RangePath kept;
  {
    const ProfilerRange step("step", 12), backward("backward");
    ProfilerRange phase("mixer");
    kept = current_ranges();
    phase.next("project");
    EXPECT_EQ(current_ranges().str(), " in step 12, backward, project");
    std::thread([] { EXPECT_EQ(current_ranges().str(), ""); }).join();
  }
  EXPECT_EQ(kept.str(), " in step 12, backward, mixer");
  EXPECT_EQ(current_ranges().str(), "");
}

void nest(int levels) {
  if (levels == 0) {
    EXPECT_EQ(current_ranges().str(), " in layer 9, layer 8, layer 7, layer 6, layer 5, layer 4, layer 3, layer 2");
    return;
  }
  const ProfilerRange range("layer", levels);
  nest(levels - 1);
}

TEST(RangePath, LeavesOutWhatIsTooDeep) {
  nest(9);
  EXPECT_EQ(current_ranges().str(), "");
}

}  // namespace
}  // namespace baton
