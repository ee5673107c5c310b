#include "tests/operator_ranks.h"

#include <algorithm>
#include <limits>

#include "model/carry.h"
#include "runtime/memory.h"
#include "tests/run_ranks.h"

namespace baton::test {

std::vector<int64_t> even_shards(int64_t T, int P) {
  std::vector<int64_t> cuts;
  for (int r = 0; r <= P; ++r) cuts.push_back(shard_of(T, P, r).first);
  return cuts;
}

std::vector<RankResult> run_on_ranks(const AttentionProblem& problem, DType dtype, const std::vector<int64_t>& cuts,
                                     ScanStrategy strategy, uint64_t delay_seed, int ranks_per_node) {
  const auto P = static_cast<int>(cuts.size()) - 1;
  const AttentionShape& s = problem.shape;
  std::vector<RankResult> results(static_cast<size_t>(P));
  run_ranks(
      P,
      [&](Group& group) {
        const auto rank = static_cast<size_t>(group.rank());
        group.set_ranks_per_node(ranks_per_node);
        const OwnedTensor scratch({StateScan::scratch_numel(strategy, group, carry_numel(s), s.B * s.H)}, dtype);
        const OwnedTensor decay({s.B, s.H, s.K}, dtype), tokens({P, s.B}, DType::kInt64);
        dispatch_float(dtype, [&]<class T>() {
          for (const Tensor& x : {scratch.tensor, decay.tensor})
            std::fill_n(x.as<T>(), x.numel(), std::numeric_limits<T>::quiet_NaN());
        });
        StateScan scan(group, strategy, scratch);
        const AttentionProblem shard = take_tokens(problem, cuts[rank], cuts[rank + 1]);
        const OwnedTensor starts({s.B, shard.shape.T}, DType::kUInt8);
        std::copy(shard.starts.begin(), shard.starts.end(), starts.tensor.as<uint8_t>());
        gather_tokens_of_shards(starts, group, tokens);
        const FixedDecays fixed{tokens, decay, starts_in_every_row(starts)};
        const Cross cross = [&](bool reversed, const Tensor& entering, const Tensor& leaving, const AttentionInputs& in,
                                const AttentionChunks& chunks, const AttentionChunks& dchunks) {
          const Stream host;
          const bool is_first = group.rank() == (reversed ? P - 1 : 0);
          const OwnedTensor received(entering.shape, entering.dtype);
          dispatch_float(dtype, [&]<class T>() {
            std::fill_n(received.tensor.as<T>(), entering.numel(), std::numeric_limits<T>::quiet_NaN());
          });
          const int64_t before = scan.sent_bytes();
          scan.begin(
              reversed ? Direction::kReversed : Direction::kForward, is_first ? entering : received.tensor, leaving,
              reversed ? backward_carry(in, chunks, dchunks, fixed, host) : forward_carry(in, chunks, fixed, host),
              host);
          scan.finish(host);
          results[rank].sent_bytes[reversed ? 1 : 0] = scan.sent_bytes() - before;
        };
        results[rank].tensors = run_shard(shard, dtype, cross);
      },
      delay_seed);
  return results;
}

}  // namespace baton::test
