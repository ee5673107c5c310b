#include "tests/operator_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "model/carry.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"
#include "runtime/rng.h"
#include "tests/run_ranks.h"
#include "tests/shared_device_group.h"

namespace baton::test {
namespace {

OwnedTensor make_nan(const Shape& shape, DType dtype, const Stream& stream) {
  OwnedTensor host(shape, dtype), x(shape, dtype, stream.device);
  dispatch_float(
      dtype, [&]<class T>() { std::fill_n(host.tensor.as<T>(), shape.numel(), std::numeric_limits<T>::quiet_NaN()); });
  copy(host, x, stream);
  synchronize(stream);
  return x;
}

std::vector<double> host_numbers(const Tensor& x, const Stream& stream) {
  const OwnedTensor host(x.shape, x.dtype);
  copy(x, host, stream);
  synchronize(stream);
  std::vector<double> numbers;
  dispatch_float(x.dtype, [&]<class T>() { numbers.assign(host.tensor.as<T>(), host.tensor.as<T>() + x.numel()); });
  return numbers;
}

OwnedTensor host_starts(const AttentionProblem& shard) {
  OwnedTensor starts({shard.shape.B, shard.shape.T}, DType::kUInt8);
  std::copy(shard.starts.begin(), shard.starts.end(), starts.tensor.as<uint8_t>());
  return starts;
}

void tell_tokens(const Tensor& starts, Group& group, const Tensor& tokens, const Stream& stream) {
  const OwnedTensor all(tokens.shape, tokens.dtype);
  gather_tokens_of_shards(starts, group, all);
  copy(all, tokens, stream);
  synchronize(stream);
}

/// The tensors of all ranks as one run would have them.
AttentionResult joined(const AttentionProblem& p, const std::vector<int64_t>& cuts,
                       const std::vector<RankResult>& ranks) {
  const AttentionShape& s = p.shape;
  AttentionResult whole;
  whole["ht"] = ranks.back().tensors.at("ht");
  whole["dh0"] = ranks.front().tensors.at("dh0");
  for (size_t r = 0; r < ranks.size(); ++r)
    for (const auto& [name, part] : ranks[r].tensors) {
      const int64_t T = cuts[r + 1] - cuts[r];
      if (name == "ht" || name == "dh0" || T == 0) continue;
      const int64_t row = static_cast<int64_t>(part.size()) / (s.B * T);
      std::vector<double>& to = whole[name];
      to.resize(static_cast<size_t>(s.B * s.T * row), NAN);
      for (int64_t b = 0; b < s.B; ++b)
        std::copy_n(part.begin() + b * T * row, T * row, to.begin() + (b * s.T + cuts[r]) * row);
    }
  return whole;
}

/// Relative RMS of each tensor, per rank and head: of ranks and one alone; of strategies, where what bfloat16 stores
/// turns with a state's last bit.
double bound(DType dtype) { return dtype == DType::kBFloat16 ? 1e-2 : tolerance(dtype); }
double agreement(DType dtype, const std::string& name) {
  if (dtype == DType::kBFloat16 && name != "ht" && name != "dh0") return 1e-2;
  return dtype == DType::kFloat64 ? 1e-14 : 1e-6;
}

}  // namespace

std::vector<int64_t> even_shards(int64_t T, int P) {
  std::vector<int64_t> cuts;
  for (int r = 0; r <= P; ++r) cuts.push_back(shard_of(T, P, r).first);
  return cuts;
}

ScanBytes scan_bytes(const AttentionShape& s, ScanStrategy strategy, int P, int rank, int R, bool reversed) {
  const bool learned = s.gate != GateKind::kNone && s.gate != GateKind::kFixed;
  const int64_t rows = s.B * s.H, state = 4 * s.K * s.V;  // of a row
  const int64_t carry = state + (learned ? 4 * s.K : 0) + (s.gate == GateKind::kBilinear ? 4 * s.V : 0);
  const int behind = reversed ? P - 1 - rank : rank, ahead = P - 1 - behind;
  const auto rounds = [](int others) { return std::bit_width(static_cast<unsigned>(others)); };  // 1, 2, 4, ... away
  if (P == 1) return {};
  if (strategy == ScanStrategy::kChain) return {ahead > 0 ? rows * state : 0, behind > 0 ? rows * state : 0};
  if (strategy == ScanStrategy::kAllGather) return {rows * carry, 0};
  if (strategy == ScanStrategy::kDoubling || R == 1)
    return {rounds(ahead) * rows * carry, rounds(behind) * rows * carry};
  const int64_t slice = shard_of(rows, R, rank % R).size();
  const bool beside_the_first = behind > 0 && behind < R;  // which gets no state
  return {(rows - slice + rounds(ahead / R) * slice) * carry + (R - 1 - (beside_the_first ? 1 : 0)) * slice * state,
          (R - 1 + rounds(behind / R)) * slice * carry + (behind > 0 ? (rows - slice) * state : 0)};
}

std::vector<int> node_sizes(ScanStrategy strategy, int P) {
  if (strategy != ScanStrategy::kHierarchical) return {1};
  std::vector<int> sizes;
  for (const int R : {1, 2, 3, 4, 8, P})
    if (P % R == 0 && (sizes.empty() || R > sizes.back())) sizes.push_back(R);
  return sizes;
}

AttentionProblem weak_problem(GateKind gate, int64_t T) {
  AttentionProblem p = random_problem({2, T, 2, 8, 12, gate}, 31);
  if (gate == GateKind::kFixed) p.gk = {-0.01, -1e-3};
  for (auto* gates : {&p.gk, &p.gv})
    for (size_t i = 0; gate != GateKind::kFixed && i < gates->size(); ++i)
      (*gates)[i] = -0.05 * random_uniform(8, 0, i);
  return p;
}

RankResult run_rank(Group& group, const AttentionProblem& problem, DType dtype, const std::vector<int64_t>& cuts,
                    ScanStrategy strategy, const Stream& stream, const AttentionProblem* other, double early_send) {
  const AttentionShape& s = problem.shape;
  const int P = group.size();
  const auto rank = static_cast<size_t>(group.rank());
  const DType number = dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
  const auto scratch = make_nan({StateScan::scratch_numel(strategy, group, carry_numel(s), s.B * s.H)}, number, stream);
  const auto decay = make_nan({s.B, s.H, s.K}, number, stream), received = make_nan(s.state(), number, stream),
             dreceived = make_nan(s.state(), number, stream);
  const OwnedTensor tokens({P, s.B}, DType::kInt64, stream.device);
  StateScan scan(group, strategy, scratch);
  const AttentionProblem shard = take_tokens(problem, cuts[rank], cuts[rank + 1]);
  const OwnedTensor starts = host_starts(shard);
  tell_tokens(starts, group, tokens, stream);
  FixedDecays fixed{tokens, decay};  // in a graph no shard may forget
  const double weakest = s.gate == GateKind::kFixed ? *std::ranges::max_element(problem.gk) : 0;
  RankResult result;
  const Cross cross = [&](bool reversed, const Tensor& entering, const Tensor& leaving, const AttentionInputs& in,
                          const AttentionChunks& chunks, const AttentionChunks& dchunks) {
    const bool is_first = group.rank() == (reversed ? P - 1 : 0);
    const int64_t before = scan.sent_bytes();
    fixed.forgets =
        other == nullptr && (starts_in_every_row(starts) || decays_forget(in.shape, number, weakest, early_send));
    scan.begin(reversed ? Direction::kReversed : Direction::kForward,
               is_first ? entering : (reversed ? dreceived : received), leaving,
               reversed ? backward_carry(in, chunks, dchunks, fixed, stream) : forward_carry(in, chunks, fixed, stream),
               stream);
    scan.finish(stream);
    scan.settle();
    result.sent_bytes[reversed ? 1 : 0] = scan.sent_bytes() - before;
  };
  const auto change = [&](const Tensor& on_device) {
    const OwnedTensor others = host_starts(take_tokens(*other, cuts[rank], cuts[rank + 1]));
    tell_tokens(others, group, tokens, stream);
    copy(others, on_device, stream);
    synchronize(stream);
  };
  result.tensors = run_shard(shard, dtype, cross, stream, other ? change : std::function<void(const Tensor&)>{});
  if (group.rank() > 0) result.entered[0] = host_numbers(received, stream);
  if (group.rank() < P - 1) result.entered[1] = host_numbers(dreceived, stream);
  return result;
}

std::vector<RankResult> run_on_ranks(const AttentionProblem& problem, DType dtype, const std::vector<int64_t>& cuts,
                                     ScanStrategy strategy, uint64_t delay_seed, int ranks_per_node, Device device,
                                     double early_send) {
  const auto P = static_cast<int>(cuts.size()) - 1;
  std::vector<RankResult> results(static_cast<size_t>(P));
  run_ranks(
      P,
      [&](Group& ranks) {
        RankResult& mine = results[static_cast<size_t>(ranks.rank())];
        ranks.set_ranks_per_node(ranks_per_node);
        if (device == Device{}) {
          mine = run_rank(ranks, problem, dtype, cuts, strategy, Stream{}, nullptr, early_send);
          return;
        }
        cuda::set_device(device.index);
        const cuda::OwnedStream own(device.index, false);
        SharedDeviceGroup group(ranks);
        mine = run_rank(group, problem, dtype, cuts, strategy, own.stream(), nullptr, early_send);
      },
      delay_seed);
  return results;
}

void expect_serial(const AttentionProblem& p, DType dtype, const std::vector<int64_t>& cuts, uint64_t delay_seed,
                   const Stream& stream) {
  const AttentionResult one = run_operator(p, dtype, {}, stream), serial = run_operator(p, dtype, cuts, stream);
  const auto P = static_cast<int>(cuts.size()) - 1;
  for (const ScanStrategy strategy : kScanStrategies)
    for (const int R : node_sizes(strategy, P)) {
      SCOPED_TRACE(fmt::format("{} {} by {} on {} ranks, {} a node", to_string(p.shape.gate), to_string(dtype),
                               to_string(strategy), P, R));
      const AttentionResult mine =
          joined(p, cuts, run_on_ranks(p, dtype, cuts, strategy, delay_seed, R, stream.device));
      for (const auto& [name, tensor] : serial) {
        EXPECT_LE(relative_error(p, one, mine, dtype, name, cuts), bound(dtype)) << name;
        if (strategy == ScanStrategy::kChain) {
          EXPECT_EQ(mine.at(name), tensor) << name;
        } else {
          EXPECT_LE(relative_error(p, serial, mine, dtype, name, cuts), agreement(dtype, name)) << name;
        }
      }
    }
}

}  // namespace baton::test
