// The operator over the ranks of a group, one GPU each, against as many ranks in one process that share this GPU.
#include "runtime/cuda.h"
#include "tests/check_tools.h"
#include "tests/dist/device_checks.h"
#include "tests/operator_ranks.h"

namespace baton::checks {
namespace {

using test::AttentionProblem;
using test::RankResult;

constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector,
                               GateKind::kBilinear};

void expect_same(const RankResult& mine, const RankResult& expected, const std::string& who) {
  for (const auto& [name, tensor] : expected.tensors)
    EXPECT(mine.tensors.at(name) == tensor, "{}: {} has other bits", who, name);
  for (const int reversed : {0, 1})
    EXPECT(mine.sent_bytes[reversed] == expected.sent_bytes[reversed], "{}: {} bytes were sent, not {}", who,
           mine.sent_bytes[reversed], expected.sent_bytes[reversed]);
}

}  // namespace

void operator_has_the_bits_of_simulated_ranks(Group& group, Device device) {
  constexpr int64_t kTokens = 230;
  const int P = group.size(), rank = group.rank();
  const cuda::OwnedStream own(device.index, false);
  const std::vector<int64_t> cuts = test::even_shards(kTokens, P);
  for (const GateKind gate : kGates)
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const ScanStrategy strategy : kScanStrategies)
        for (const int R : test::node_sizes(strategy, P)) {
          const std::string who = fmt::format("rank {} of {}, {} a node, {} {} by {}", rank, P, R, to_string(gate),
                                              to_string(dtype), to_string(strategy));
          AttentionProblem p = rounded(test::weak_problem(gate, kTokens)), other = p;
          p.starts.assign(2 * kTokens, 0);
          other.starts.assign(2 * kTokens, 0);
          for (const int64_t t : {1, 60, 61, 150}) other.starts[static_cast<size_t>(t)] = 1;  // the second row has none
          group.set_ranks_per_node(R);
          const auto here = static_cast<size_t>(rank);
          const auto expected = test::run_on_ranks(p, dtype, cuts, strategy, 0, R, device);
          expect_same(test::run_rank(group, p, dtype, cuts, strategy, own.stream()), expected[here], who);
          const auto packed = test::run_on_ranks(other, dtype, cuts, strategy, 0, R, device);
          EXPECT(packed[here].tensors.at("o") != expected[here].tensors.at("o"), "{}: documents change nothing", who);
          expect_same(test::run_rank(group, other, dtype, cuts, strategy, own.stream()), packed[here],
                      who + ", documents");
          expect_same(test::run_rank(group, p, dtype, cuts, strategy, own.stream(), &other), packed[here],
                      who + ", a graph with other documents");
        }
  group.set_ranks_per_node(1);
}

}  // namespace baton::checks
