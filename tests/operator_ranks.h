// The operator over ranks, the state going through StateScan; ranks of tests/sim, on the host or all on one device, and
// those of any other group.
#pragma once

#include "comm/state_scan.h"
#include "tests/reference/attention_runner.h"

namespace baton::test {

struct RankResult {
  AttentionResult tensors;
  std::vector<double> entered[2];  // the state that came from the rank before, and its gradient; none on the first
  int64_t sent_bytes[2] = {0, 0};  // of the scan, forward and reversed
};

/// What this rank computes: rank r has tokens [cuts[r], cuts[r + 1]). `other`, where given, is the same problem with
/// other document starts (neither without any): the results are its, made by a CUDA graph of the first, as run_shard
/// does. early_send: as decays_forget.
RankResult run_rank(Group& group, const AttentionProblem& problem, DType dtype, const std::vector<int64_t>& cuts,
                    ScanStrategy strategy, const Stream& stream, const AttentionProblem* other = nullptr,
                    double early_send = 0);

/// What each of as many in-process ranks computes. delay_seed as in run_ranks.
std::vector<RankResult> run_on_ranks(const AttentionProblem& problem, DType dtype, const std::vector<int64_t>& cuts,
                                     ScanStrategy strategy, uint64_t delay_seed = 0, int ranks_per_node = 1,
                                     Device device = {}, double early_send = 0);

/// P shards as shard_of cuts them.
std::vector<int64_t> even_shards(int64_t T, int P);

/// Two rows of weak decays, so that a state crosses many ranks.
AttentionProblem weak_problem(GateKind gate, int64_t T);

/// Payload of one scan on one rank, by the formulas of comm/README.md, R ranks a node; none received in a collective.
struct ScanBytes {
  int64_t sent = 0, received = 0;
};
ScanBytes scan_bytes(const AttentionShape& shape, ScanStrategy strategy, int P, int rank, int R, bool reversed);

/// Ranks of a node with which a strategy is tried on P ranks.
std::vector<int> node_sizes(ScanStrategy strategy, int P);

/// Every strategy on in-process ranks, every tensor of every rank and head: close to one rank alone; and against the
/// same shards one after another chain has the same bits, and the others agree to rounding.
void expect_serial(const AttentionProblem& problem, DType dtype, const std::vector<int64_t>& cuts,
                   uint64_t delay_seed = 0, const Stream& stream = {});

}  // namespace baton::test
