// The operator over simulated ranks, the state going through StateScan.
#pragma once

#include "comm/state_scan.h"
#include "tests/reference/attention_runner.h"

namespace baton::test {

struct RankResult {
  AttentionResult tensors;
  int64_t sent_bytes[2] = {0, 0};  // of the scan, forward and reversed
};

/// What each rank computes: rank r has tokens [cuts[r], cuts[r + 1]). delay_seed as in run_ranks.
std::vector<RankResult> run_on_ranks(const AttentionProblem& problem, DType dtype, const std::vector<int64_t>& cuts,
                                     ScanStrategy strategy, uint64_t delay_seed = 0, int ranks_per_node = 1);

/// P shards as shard_of cuts them.
std::vector<int64_t> even_shards(int64_t T, int P);

}  // namespace baton::test
