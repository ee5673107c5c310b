// The ranges as a profiler sees them: the test is one, by NVTX's hook for a profiler that is part of the program.
#include "runtime/profiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

namespace {

std::vector<std::string> seen;

int push(const char* name) {
  seen.emplace_back(name);
  return 0;
}

int pop() {
  seen.emplace_back("end");
  return 0;
}

int install(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

}  // namespace

TEST(ProfilerRange, NestsAndGoesOn) {
  InitializeInjectionNvtx2_fnptr = install;  // looked at by the first range
  {
    const baton::ProfilerRange layer("layer", 3);
    baton::ProfilerRange phase("project");
    phase.next("carry");
  }
  EXPECT_THAT(seen, testing::ElementsAre("layer 3", "project", "end", "carry", "end", "end"));
}
