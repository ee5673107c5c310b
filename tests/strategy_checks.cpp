// The checks of StateScan's strategies other than chain.
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "comm/scan_cost.h"
#include "tests/check_tools.h"
#include "tests/comm_checks.h"

namespace baton::checks {
namespace {

const Shape kState{2, 3, 4};

/// The carry of one rank, known to every rank: element i of the state has its own decay, one in four is 0.
template <class T>
T decay_of(int64_t rank, int layer, int64_t i) {
  const double u = random_uniform(5, static_cast<uint64_t>(rank * 100 + layer), static_cast<uint64_t>(i));
  return static_cast<T>(u < 0.25 ? 0 : u);
}
template <class T>
T state_of(int64_t rank, int layer, int64_t i) {
  return static_cast<T>(random_normal(6, static_cast<uint64_t>(rank * 100 + layer), static_cast<uint64_t>(i)));
}

struct Trial {
  ScanStrategy strategy;
  Direction direction;
  int layer;
  bool decays_are_sent;  // else everybody multiplies those of the ranks of a stretch
};

template <class T>
ShardCarry made_up_carry(const Trial& trial, int rank) {
  const int64_t n = kState.numel();
  ShardCarry shard;
  shard.numel = trial.decays_are_sent ? 2 * n : n;
  shard.rows = n;
  shard.widths = {1, trial.decays_are_sent ? 1 : 0, 0};
  shard.advance = [=](const Tensor& entering, const Tensor& leaving) {
    for (int64_t i = 0; i < n; ++i)
      leaving.as<T>()[i] = decay_of<T>(rank, trial.layer, i) * entering.as<T>()[i] + state_of<T>(rank, trial.layer, i);
  };
  shard.own = [=](const Tensor& carry) {
    for (int64_t i = 0; i < n; ++i) carry.as<T>()[i] = state_of<T>(rank, trial.layer, i);
    if (trial.decays_are_sent)
      for (int64_t i = 0; i < n; ++i) carry.as<T>()[n + i] = decay_of<T>(rank, trial.layer, i);
  };
  shard.compose = [=](const Stretch& first, const Stretch& second, const Tensor& out) {
    const bool forward = trial.direction == Direction::kForward;
    EXPECT(forward ? first.ranks.last == second.ranks.first : second.ranks.last == first.ranks.first,
           "ranks [{}, {}) and then [{}, {}) are composed", first.ranks.first, first.ranks.last, second.ranks.first,
           second.ranks.last);
    const Range rows = first.rows.size() > 0 ? first.rows : Range{0, n};
    EXPECT(first.rows == second.rows, "rows from {} and from {} are composed", first.rows.first, second.rows.first);
    for (int64_t i = 0; i < rows.size(); ++i) {
      const T *x = first.carry.as<T>(), *y = second.carry.as<T>();
      T decay = 1;
      if (trial.decays_are_sent) {
        decay = y[rows.size() + i];
        out.as<T>()[rows.size() + i] = x[rows.size() + i] * decay;
      } else {
        for (int64_t r = second.ranks.first; r < second.ranks.last; ++r)
          decay *= decay_of<T>(r, trial.layer, rows.first + i);
      }
      out.as<T>()[i] = decay * x[i] + y[i];
    }
  };
  return shard;
}

/// Relative to the size of what is summed, about 1: a sum may cancel.
template <class T>
bool are_close(const Tensor& a, const Tensor& b) {
  const double tolerance = std::is_same_v<T, float> ? 1e-6 : 1e-14;
  for (int64_t i = 0; i < a.numel(); ++i)
    if (!(std::abs(a.as<T>()[i] - b.as<T>()[i]) <= tolerance * (1 + std::abs(b.as<T>()[i])))) return false;
  return true;
}

void fill_nan(const Tensor& x) {
  dispatch_float(x.dtype, [&]<class T>() { std::fill_n(x.as<T>(), x.numel(), std::numeric_limits<T>::quiet_NaN()); });
}

/// Distances 1, 2, 4, ... at which a rank, or a node of R, follows.
int64_t num_distances(const Trial& trial, int P, int rank, int R) {
  const int following = (trial.direction == Direction::kForward ? P - 1 - rank : rank) / R;
  int64_t count = 0;
  for (int distance = 1; distance <= following; distance *= 2) ++count;
  return count;
}

/// Numbers that this rank sends. By nodes of R: others' slices of its carry, its own in doubling, and its slice of a
/// state to the others but the first of all.
int64_t numbers_sent(const Trial& trial, int64_t width, int P, int rank, int R) {
  const int64_t n = kState.numel();
  if (P == 1) return 0;
  if (trial.strategy == ScanStrategy::kAllGather) return n * width;
  if (trial.strategy == ScanStrategy::kDoubling || R == 1) return n * width * num_distances(trial, P, rank, 1);
  const int first = trial.direction == Direction::kForward ? 0 : P - 1;
  const int64_t slice = shard_of(n, R, rank % R).size();
  const bool beside_the_first = rank / R == first / R && rank != first;
  return (n - slice) * width + slice * width * num_distances(trial, P, rank, R) +
         slice * (R - 1 - (beside_the_first ? 1 : 0));
}

template <class T>
void run_trial(Group& group, StateScan& scan, const Trial& trial) {
  const int P = group.size(), rank = group.rank(), step = trial.direction == Direction::kForward ? 1 : -1;
  const int first = step > 0 ? 0 : P - 1;
  const OwnedTensor entering(kState, dtype_of<T>()), leaving(kState, dtype_of<T>());
  for (const Tensor& x : {entering.tensor, leaving.tensor}) fill_nan(x);
  if (rank == first) fill_normal<T>(entering, 4, static_cast<uint64_t>(trial.layer));
  const int64_t before = scan.sent_bytes();
  const ShardCarry mine = made_up_carry<T>(trial, rank);
  scan.begin(trial.direction, entering, leaving, mine, kHost);
  scan.finish(kHost);

  const OwnedTensor state(kState, dtype_of<T>()), next(kState, dtype_of<T>());
  fill_normal<T>(state, 4, static_cast<uint64_t>(trial.layer));
  for (int r = first; r != rank; r += step) {
    made_up_carry<T>(trial, r).advance(state, next);
    copy(next, state, kHost);
  }
  mine.advance(state, next);
  const std::string who = fmt::format("rank {} of {} by {}", rank, P, to_string(trial.strategy));
  EXPECT(are_close<T>(entering, state), "{}: the entering state is wrong", who);
  EXPECT(are_close<T>(leaving, next), "{}: the leaving state is wrong", who);
  for (int64_t i = 0; rank != first && i < kState.numel(); ++i)
    EXPECT(decay_of<T>(rank - step, trial.layer, i) != 0 ||
               entering.tensor.as<T>()[i] == state_of<T>(rank - step, trial.layer, i),
           "{}: something came through a decay of 0", who);
  const int64_t formula = numbers_sent(trial, trial.decays_are_sent ? 2 : 1, P, rank, group.ranks_per_node()) *
                          static_cast<int64_t>(sizeof(T));
  EXPECT(scan.sent_bytes() - before == formula, "{} sent {} bytes, not {}", who, scan.sent_bytes() - before, formula);
}

/// Entering and leaving state of one scan, [2, ...]. pause runs before the scan and under it.
OwnedTensor run_paused(Group& group, StateScan& scan, const Trial& trial, const std::function<void()>& pause) {
  const int first = trial.direction == Direction::kForward ? 0 : group.size() - 1;
  OwnedTensor both({2, kState.numel()}, DType::kFloat32);
  const Tensor entering = both.tensor.rows(0, 1).view(kState), leaving = both.tensor.rows(1, 1).view(kState);
  fill_nan(both);
  if (group.rank() == first) fill_normal<float>(entering, 4, static_cast<uint64_t>(trial.layer));
  pause();
  scan.begin(trial.direction, entering, leaving, made_up_carry<float>(trial, group.rank()), kHost);
  pause();
  scan.finish(kHost);
  return both;
}

template <class T>
void run_trials(Group& group, ScanStrategy strategy) {
  const int64_t largest = 2 * kState.numel();
  const OwnedTensor scratch({StateScan::scratch_numel(strategy, group, largest, kState.numel())}, dtype_of<T>());
  StateScan scan(group, strategy, scratch);
  const Traffic before = group.traffic();
  for (const Direction direction : {Direction::kForward, Direction::kReversed})
    for (int layer = 0; layer < 4; ++layer)
      for (const bool decays_are_sent : {true, false}) {
        fill_nan(scratch);
        run_trial<T>(group, scan, {strategy, direction, layer, decays_are_sent});
      }
  const Traffic& after = group.traffic();
  const int64_t counted = after.sent_bytes - before.sent_bytes + after.collective_bytes - before.collective_bytes;
  // 2 directions, 56 bytes to each neighbour.
  const int num_neighbours = (group.rank() > 0 ? 1 : 0) + (group.rank() + 1 < group.size() ? 1 : 0);
  EXPECT(counted - scan.sent_bytes() == 2 * 56 * num_neighbours, "the transport counted {} bytes, the scan {}", counted,
         scan.sent_bytes());
  const int R = group.ranks_per_node();
  const int64_t sent = numbers_sent({strategy, Direction::kForward, 0, true}, 2, group.size(), group.rank(), R);
  const int64_t most = all_reduce(group, sent, ReduceOp::kMax);
  const int64_t told = most_sent(strategy, group.size(), {kState.numel(), largest, 1, kState.numel()}, R);
  EXPECT(kState.numel() % R != 0 || most == told, "{} numbers are sent at most, not {}", most, told);
}

}  // namespace

void strategies_are_serial_composition(Group& group) {
  for (const ScanStrategy strategy : {ScanStrategy::kDoubling, ScanStrategy::kAllGather}) {
    run_trials<float>(group, strategy);
    run_trials<double>(group, strategy);
  }
  for (int R = 1; R <= group.size(); ++R) {
    if (group.size() % R != 0) continue;
    group.set_ranks_per_node(R);
    run_trials<float>(group, ScanStrategy::kHierarchical);
    run_trials<double>(group, ScanStrategy::kHierarchical);
  }
  group.set_ranks_per_node(1);
}

void delays_change_no_bit(Group& group, int num_scans, double max_delay_s) {
  const int P = group.size();
  group.set_ranks_per_node(P % 4 == 0 ? 4 : P % 2 == 0 ? 2 : P);  // of hierarchical
  for (const ScanStrategy strategy : kScanStrategies) {
    const OwnedTensor scratch({StateScan::scratch_numel(strategy, group, 2 * kState.numel(), kState.numel())},
                              DType::kFloat32);
    StateScan scan(group, strategy, scratch);
    std::vector<Trial> trials;
    std::vector<OwnedTensor> undelayed;
    for (const Direction direction : {Direction::kForward, Direction::kReversed})
      for (int layer = 0; layer < 4; ++layer) trials.push_back({strategy, direction, layer, layer % 2 == 0});
    for (const Trial& trial : trials) undelayed.push_back(run_paused(group, scan, trial, [] {}));
    uint64_t num_pauses = 0;
    const auto pause = [&] {  // two a scan, together at most max_delay_s
      const double part = random_uniform(10, static_cast<uint64_t>(group.rank()), num_pauses++) / 2;
      std::this_thread::sleep_for(std::chrono::duration<double>(part * max_delay_s));
    };
    for (int i = 0; i < num_scans; ++i) {
      const size_t which = random_bits(11, 0, static_cast<uint64_t>(i)) % trials.size();
      EXPECT(same_bits(run_paused(group, scan, trials[which], pause), undelayed[which]),
             "rank {} of {} by {}: scan {} under delays gave other bits", group.rank(), group.size(),
             to_string(strategy), i);
    }
  }
  group.set_ranks_per_node(1);
}

void too_little_scratch_is_refused(Group& pair) {
  const OwnedTensor scratch({7}, DType::kFloat32), entering(kState, DType::kFloat32), leaving(kState, DType::kFloat32);
  StateScan scan(pair, ScanStrategy::kDoubling, scratch);
  expect_refusal(
      [&] {
        const Trial trial{ScanStrategy::kDoubling, Direction::kForward, 0, true};
        scan.begin(Direction::kForward, entering, leaving, made_up_carry<float>(trial, pair.rank()), kHost);
      },
      {"doubling", "48", "192"});
}

}  // namespace baton::checks
