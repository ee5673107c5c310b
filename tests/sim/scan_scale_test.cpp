// StateScan over up to 1024 in-process ranks, and in long random sequences; messages arrive at random times, and a send
// is done only when its receive has been posted. Carries are affine maps modulo a prime: their composition is exact and
// does not commute, so every strategy must give the bits of the serial composition.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "comm/state_scan.h"
#include "runtime/memory.h"
#include "runtime/rng.h"
#include "tests/run_ranks.h"

namespace baton {
namespace {

const Stream kHost{};
constexpr int64_t kPrime = (int64_t{1} << 31) - 1;
constexpr int64_t kMaxNumel = 6;

struct Scan {
  Direction direction;
  int64_t numel;  // of a state
  uint64_t seed;
};

int64_t number(const Scan& scan, int stream, int64_t i) {
  return static_cast<int64_t>(random_bits(scan.seed, static_cast<uint64_t>(stream), static_cast<uint64_t>(i)) % kPrime);
}
/// One shard in four.
bool forgets(const Scan& scan, int rank) { return number(scan, rank, 1 << 21) % 4 == 0; }
/// Rank r's shard takes x to factor * x + term. One factor in eight is 0, all are where it forgets.
int64_t factor(const Scan& scan, int rank, int64_t i) {
  const int64_t a = number(scan, 2 * rank, i);
  return a % 8 == 0 || forgets(scan, rank) ? 0 : a;
}
int64_t term(const Scan& scan, int rank, int64_t i) { return number(scan, 2 * rank + 1, i); }
int64_t first_state(const Scan& scan, int64_t i) { return number(scan, 1 << 20, i); }

/// A carry as it is sent: the terms, then the factors.
ShardCarry affine_carry(const Scan& scan, int rank) {
  ShardCarry shard;
  const int64_t n = scan.numel;
  shard.numel = 2 * n;
  shard.rows = n;
  shard.widths = {1, 1, 0};
  shard.forgets = forgets(scan, rank);
  shard.advance = [=](const Tensor& entering, const Tensor& leaving) {
    for (int64_t i = 0; i < n; ++i)
      leaving.as<int64_t>()[i] = (factor(scan, rank, i) * entering.as<int64_t>()[i] + term(scan, rank, i)) % kPrime;
  };
  shard.own = [=](const Tensor& carry) {
    for (int64_t i = 0; i < n; ++i) {
      carry.as<int64_t>()[i] = term(scan, rank, i);
      carry.as<int64_t>()[n + i] = factor(scan, rank, i);
    }
  };
  shard.compose = [=](const Stretch& first, const Stretch& second, const Tensor& out) {
    const auto *x = first.carry.as<int64_t>(), *y = second.carry.as<int64_t>();
    const int64_t rows = first.rows.size() > 0 ? first.rows.size() : n;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t a = y[rows + i];
      out.as<int64_t>()[i] = (a * x[i] + y[i]) % kPrime;
      out.as<int64_t>()[rows + i] = a * x[rows + i] % kPrime;
    }
  };
  return shard;
}

int64_t serial_state(const Scan& scan, int num_ranks, int rank, int64_t i) {
  const int step = scan.direction == Direction::kForward ? 1 : -1;
  int64_t x = first_state(scan, i);
  for (int r = step > 0 ? 0 : num_ranks - 1; r != rank; r += step)
    x = (factor(scan, r, i) * x + term(scan, r, i)) % kPrime;
  return x;
}

/// Ranks stop now and then, for up to 1 ms.
void dawdle(const Scan& scan, int rank) {
  const auto bits = static_cast<uint64_t>(number(scan, rank, 1 << 20));
  if (bits % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds((bits >> 3) % 1000));
}

void run(Group& group, StateScan& state_scan, const Scan& scan) {
  const int P = group.size(), rank = group.rank();
  const OwnedTensor entering({scan.numel}, DType::kInt64), leaving({scan.numel}, DType::kInt64);
  const bool is_first = rank == (scan.direction == Direction::kForward ? 0 : P - 1);
  for (int64_t i = 0; i < scan.numel; ++i) {
    entering.tensor.as<int64_t>()[i] = is_first ? first_state(scan, i) : -1;
    leaving.tensor.as<int64_t>()[i] = -1;
  }
  dawdle(scan, rank);
  state_scan.begin(scan.direction, entering, leaving, affine_carry(scan, rank), kHost);
  dawdle(scan, P + rank);
  state_scan.finish(kHost);
  for (int64_t i = 0; i < scan.numel; ++i) {
    const int64_t x = serial_state(scan, P, rank, i);
    const int64_t next = (factor(scan, rank, i) * x + term(scan, rank, i)) % kPrime;
    CHECK(entering.tensor.as<int64_t>()[i] == x && leaving.tensor.as<int64_t>()[i] == next,
          "rank {} of {}: {} enters and {} leaves, not {} and {}", rank, P, entering.tensor.as<int64_t>()[i],
          leaving.tensor.as<int64_t>()[i], x, next);
  }
}

/// The last rank's number comes to the first.
void wrap(Group& group, StateScan& scan, Direction direction) {
  const int last = direction == Direction::kForward ? group.size() - 1 : 0, first = group.size() - 1 - last;
  const OwnedTensor leaving({1}, DType::kInt64), entering({1}, DType::kInt64);
  leaving.tensor.as<int64_t>()[0] = group.rank();
  scan.wrap(direction, {leaving}, {entering}, kHost);
  if (group.rank() == first) CHECK(entering.tensor.as<int64_t>()[0] == last, "a wrap brought another rank's state");
}

/// The strategies of one rank, side by side.
class Scans {
 public:
  explicit Scans(Group& group) {
    const int P = group.size();
    group.set_ranks_per_node(P % 8 == 0 ? 8 : P % 4 == 0 ? 4 : P <= 3 ? P : 1);
    for (const ScanStrategy strategy : kScanStrategies) {
      scratch_.emplace_back(Shape{StateScan::scratch_numel(strategy, group, 2 * kMaxNumel, kMaxNumel)}, DType::kInt64);
      scans_.push_back(std::make_unique<StateScan>(group, strategy, scratch_.back()));
    }
  }
  StateScan& operator[](size_t i) { return *scans_[i]; }
  size_t size() const { return scans_.size(); }

 private:
  std::vector<OwnedTensor> scratch_;
  std::vector<std::unique_ptr<StateScan>> scans_;
};

class ScanScale : public testing::TestWithParam<int> {};

TEST_P(ScanScale, EveryStrategyIsTheSerialComposition) {
  run_ranks(
      GetParam(),
      [](Group& group) {
        Scans scans(group);
        for (const Direction direction : {Direction::kForward, Direction::kReversed})
          for (size_t s = 0; s < scans.size(); ++s) run(group, scans[s], {direction, 2, 7 + s});
      },
      GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, ScanScale, testing::Values(2, 3, 17, 64, 256, 1024));

void run_sequence(Group& group, uint64_t seed, int64_t num_scans) {
  Scans scans(group);
  for (int64_t i = 0; i < num_scans; ++i) {
    const uint64_t bits = random_bits(seed, 0, static_cast<uint64_t>(i));
    const Direction direction = bits % 2 == 0 ? Direction::kForward : Direction::kReversed;
    StateScan& scan = scans[(bits >> 8) % scans.size()];
    run(group, scan, {direction, 1 + static_cast<int64_t>((bits >> 16) % kMaxNumel), bits});
    if ((bits >> 24) % 8 == 0) wrap(group, scan, direction);
  }
}

/// Groups of five sizes side by side. A scan of P ranks hands a state over P - 1 times at least.
TEST(ScanSequence, A100000RandomHandOversEnd) {
  constexpr int64_t kHandOvers = 100000, kGroups = 5;
  std::vector<std::future<void>> groups;
  for (const int P : {2, 3, 5, 8, 17})
    groups.push_back(std::async(std::launch::async, [P] {
      const auto seed = static_cast<uint64_t>(P);
      run_ranks(
          P, [&](Group& group) { run_sequence(group, seed, kHandOvers / kGroups / (P - 1)); }, seed);
    }));
  for (std::future<void>& group : groups) group.get();
}

}  // namespace
}  // namespace baton
