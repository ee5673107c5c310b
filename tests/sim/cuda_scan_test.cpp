// Every strategy of the scan under the operator on ranks that share a GPU; and packings in a CUDA graph.
#include <gtest/gtest.h>

#include "runtime/cuda.h"
#include "tests/operator_ranks.h"
#include "tests/run_ranks.h"

namespace baton::test {
namespace {

constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector,
                               GateKind::kBilinear};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};

const Stream& stream() {
  static const cuda::OwnedStream owned(0, false);
  return owned.stream();
}

TEST(CudaScan, StrategiesAgreeWithTheSerialChain) {
  for (const GateKind gate : kGates)
    for (const DType dtype : kDTypes)
      for (const int P : {1, 2, 3, 5, 8, 16, 17})
        expect_serial(rounded(weak_problem(gate, 230)), dtype, even_shards(230, P), 0, stream());
}

TEST(CudaScan, DocumentsInUnevenAndEmptyShards) {
  for (const GateKind gate : kGates)
    for (const DType dtype : kDTypes) {
      AttentionProblem p = rounded(weak_problem(gate, 230));
      p.starts.assign(2 * 230, 0);
      for (const int64_t t : {1, 60, 61, 150, 230 + 100, 230 + 131}) p.starts[static_cast<size_t>(t)] = 1;
      expect_serial(p, dtype, {0, 0, 1, 2, 130, 130, 130, 131, 230}, 0, stream());
      expect_serial(p, dtype, {0, 50, 120, 230}, 0, stream());  // of three shards two forget
    }
}

/// Captured with one packing, run with another: its bits are those of the other alone.
TEST(CudaScan, APackingChangesNoLaunch) {
  for (const GateKind gate : kGates)
    for (const DType dtype : kDTypes) {
      AttentionProblem p = rounded(weak_problem(gate, 230)), other = p;
      p.starts.assign(2 * 230, 0), other.starts = p.starts;
      p.starts[7] = p.starts[230 + 201] = 1;
      for (const int64_t t : {1, 64, 100, 128, 129, 230, 230 + 90}) other.starts[static_cast<size_t>(t)] = 1;
      run_ranks(1, [&](Group& one) {
        const std::vector<int64_t> cuts{0, 230};
        const RankResult alone = run_rank(one, other, dtype, cuts, ScanStrategy::kChain, stream());
        const RankResult graph = run_rank(one, p, dtype, cuts, ScanStrategy::kChain, stream(), &other);
        EXPECT_EQ(alone.tensors, graph.tensors) << to_string(gate) << " " << to_string(dtype);
        const RankResult before = run_rank(one, p, dtype, cuts, ScanStrategy::kChain, stream());
        EXPECT_NE(before.tensors, graph.tensors) << to_string(gate) << " " << to_string(dtype);
      });
    }
}

}  // namespace
}  // namespace baton::test
