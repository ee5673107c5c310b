#include "tests/operator_checks.h"

#include <limits>

#include "tests/check_tools.h"
#include "tests/operator_ranks.h"

namespace baton::checks {
namespace {

using test::AttentionProblem;
using test::RankResult;

constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector,
                               GateKind::kBilinear};

struct Case {
  const char* name;
  AttentionProblem problem;
  std::vector<int64_t> cuts;
};

/// Two rows, of which the second may have no document but the first.
AttentionProblem with_starts(AttentionProblem p, const std::vector<int64_t>& tokens) {
  p.starts.assign(static_cast<size_t>(p.shape.B * p.shape.T), 0);
  for (const int64_t t : tokens) p.starts[static_cast<size_t>(t)] = 1;
  return p;
}

/// Gates of -inf and -50 at both sides of every border, where they are learned.
AttentionProblem with_strong_gates(AttentionProblem p, const std::vector<int64_t>& cuts) {
  const int64_t B = p.shape.B, T = p.shape.T;
  if (p.shape.gate == GateKind::kFixed) return p;
  for (auto* gates : {&p.gk, &p.gv}) {
    const int64_t row = static_cast<int64_t>(gates->size()) / (B * T);
    for (int64_t i = 0; i < B * T * row; i += 3)
      for (const int64_t cut : cuts) {
        const int64_t t = i / row % T;
        if (t == cut) (*gates)[static_cast<size_t>(i)] = -std::numeric_limits<double>::infinity();
        if (t == cut - 1) (*gates)[static_cast<size_t>(i)] = -50;
      }
  }
  return p;
}

std::vector<Case> cases_of(GateKind gate, int P) {
  constexpr int64_t kTokens = 230;
  const AttentionProblem plain = test::weak_problem(gate, kTokens), few = test::weak_problem(gate, P - 1);
  const std::vector<int64_t> even = test::even_shards(kTokens, P);
  return {{"even shards", plain, even},
          {"documents", with_starts(plain, {1, 60, 61, 150, kTokens + 10, kTokens + 160}), even},
          {"fewer tokens than ranks", few, test::even_shards(P - 1, P)},
          {"strong gates", with_strong_gates(plain, even), even}};
}

void expect_same(const RankResult& mine, const RankResult& expected, const std::string& who) {
  for (const auto& [name, tensor] : expected.tensors)
    EXPECT(mine.tensors.at(name) == tensor, "{}: {} has other bits", who, name);
  for (const int reversed : {0, 1})
    EXPECT(mine.sent_bytes[reversed] == expected.sent_bytes[reversed], "{}: {} bytes were sent, not {}", who,
           mine.sent_bytes[reversed], expected.sent_bytes[reversed]);
}

}  // namespace

void operator_has_the_bits_of_simulated_ranks(Group& group, const Stream& stream) {
  const int P = group.size();
  const auto rank = static_cast<size_t>(group.rank());
  const bool on_gpu = stream.device.type == DeviceType::kCuda;
  for (const GateKind gate : kGates)
    for (const Case& c : cases_of(gate, P))
      for (const DType dtype : {DType::kFloat32, on_gpu ? DType::kBFloat16 : DType::kFloat64})
        for (const ScanStrategy strategy : kScanStrategies)
          for (const int R : test::node_sizes(strategy, P)) {
            const std::string who = fmt::format("rank {} of {}, {} a node, {} {} by {}, {}", rank, P, R,
                                                to_string(gate), to_string(dtype), to_string(strategy), c.name);
            const AttentionProblem p = on_gpu ? rounded(c.problem) : c.problem;
            group.set_ranks_per_node(R);
            const auto expected = test::run_on_ranks(p, dtype, c.cuts, strategy, 0, R, stream.device);
            expect_same(test::run_rank(group, p, dtype, c.cuts, strategy, stream), expected[rank], who);
            if (!on_gpu || p.starts.empty()) continue;
            const AttentionProblem other = with_starts(p, {});
            expect_same(test::run_rank(group, other, dtype, c.cuts, strategy, stream, &p), expected[rank],
                        who + ", in a graph of other documents");
          }
  group.set_ranks_per_node(1);
}

void traffic_is_the_formula_at_any_length(Group& group) {
  const int P = group.size(), rank = group.rank();
  const int64_t headers = 2 * 56 * ((rank > 0 ? 1 : 0) + (rank + 1 < P ? 1 : 0));  // neighbours compare shapes
  for (const GateKind gate : kGates)
    for (const ScanStrategy strategy : kScanStrategies)
      for (const int R : test::node_sizes(strategy, P))
        for (const int64_t T : {P, 4 * P, 16 * P}) {
          const AttentionProblem p = test::weak_problem(gate, T);
          group.set_ranks_per_node(R);
          const int64_t before = group.traffic().received_bytes;
          const RankResult result = test::run_rank(group, p, DType::kFloat32, test::even_shards(T, P), strategy, {});
          const int64_t received = group.traffic().received_bytes - before - headers;
          const test::ScanBytes forward = test::scan_bytes(p.shape, strategy, P, rank, R, false),
                                back = test::scan_bytes(p.shape, strategy, P, rank, R, true);
          const std::string who = fmt::format("rank {} of {}, {} a node, {} by {}, {} tokens", rank, P, R,
                                              to_string(gate), to_string(strategy), T);
          EXPECT(result.sent_bytes[0] == forward.sent && result.sent_bytes[1] == back.sent,
                 "{}: {} bytes were sent forward and {} back, not {} and {}", who, result.sent_bytes[0],
                 result.sent_bytes[1], forward.sent, back.sent);
          EXPECT(received == forward.received + back.received, "{}: {} bytes were received, not {}", who, received,
                 forward.received + back.received);
        }
  group.set_ranks_per_node(1);
}

}  // namespace baton::checks
