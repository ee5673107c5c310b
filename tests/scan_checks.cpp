// The checks of StateScan.
#include <limits>

#include "comm/state_scan.h"
#include "tests/check_tools.h"
#include "tests/comm_checks.h"

namespace baton::checks {
namespace {

/// The carry of one rank in one layer, known to every rank. h -> G * h + S does not commute.
template <class T>
void advance_state(int rank, int layer, const Tensor& entering, const Tensor& leaving) {
  for (int64_t i = 0; i < entering.numel(); ++i) {
    const auto G = static_cast<T>(random_uniform(2, rank * 100 + layer, i));
    const auto S = static_cast<T>(random_normal(3, rank * 100 + layer, i));
    leaving.as<T>()[i] = G * entering.as<T>()[i] + S;
  }
}

struct States {
  States(const Shape& shape, DType dtype) : entering(shape, dtype), leaving(shape, dtype) {}
  OwnedTensor entering, leaving;
};

template <class T>
States serial_states(const Shape& shape, Direction direction, int P, int rank, int layer) {
  States states(shape, dtype_of<T>());
  const int step = direction == Direction::kForward ? 1 : -1;
  const int first = step > 0 ? 0 : P - 1;
  fill_normal<T>(states.entering, 4, layer);
  advance_state<T>(first, layer, states.entering, states.leaving);
  for (int r = first; r != rank;) {
    r += step;
    copy(states.leaving, states.entering, kHost);
    advance_state<T>(r, layer, states.entering, states.leaving);
  }
  return states;
}

template <class T>
void scan_of(Group& group, StateScan& scan, Direction direction, int layer) {
  const Shape shape{2, 3, 5, 4 + layer % 2};
  const int P = group.size(), rank = group.rank();
  const bool is_first = rank == (direction == Direction::kForward ? 0 : P - 1);
  const bool is_last = rank == (direction == Direction::kForward ? P - 1 : 0);
  States states(shape, dtype_of<T>());
  for (const Tensor& x : {states.entering.tensor, states.leaving.tensor})
    for (int64_t i = 0; i < x.numel(); ++i) x.as<T>()[i] = std::numeric_limits<T>::quiet_NaN();
  if (is_first) fill_normal<T>(states.entering, 4, layer);
  int num_advances = 0;
  const int64_t sent_before = scan.sent_bytes();
  scan.begin(direction, states.entering, states.leaving, {[&](const Tensor& entering, const Tensor& leaving) {
               ++num_advances;
               advance_state<T>(rank, layer, entering, leaving);
             }},
             kHost);
  scan.finish(kHost);
  const States expected = serial_states<T>(shape, direction, P, rank, layer);
  EXPECT(num_advances == 1, "advance was called {} times", num_advances);
  EXPECT(same_bits(states.entering, expected.entering), "rank {} of {}: the entering state is wrong", rank, P);
  EXPECT(same_bits(states.leaving, expected.leaving), "rank {} of {}: the leaving state is wrong", rank, P);
  const int64_t formula = is_last ? 0 : 2 * 3 * 5 * (4 + layer % 2) * static_cast<int64_t>(sizeof(T));
  EXPECT(scan.sent_bytes() - sent_before == formula, "rank {} of {} sent {} bytes, not {}", rank, P,
         scan.sent_bytes() - sent_before, formula);
}

}  // namespace

void scan_is_serial_composition(Group& group) {
  StateScan scan(group, ScanStrategy::kChain);
  const Traffic before = group.traffic();
  for (int layer = 0; layer < 4; ++layer) scan_of<float>(group, scan, Direction::kForward, layer);
  for (int layer = 3; layer >= 0; --layer) scan_of<float>(group, scan, Direction::kReversed, layer);
  for (int layer = 0; layer < 2; ++layer) scan_of<double>(group, scan, Direction::kForward, layer);
  for (int layer = 0; layer < 2; ++layer) scan_of<double>(group, scan, Direction::kReversed, layer);
  // 2 shapes x 2 dtypes x 2 directions, 56 bytes to each neighbour.
  const int num_neighbours = (group.rank() > 0 ? 1 : 0) + (group.rank() + 1 < group.size() ? 1 : 0);
  const int64_t others = group.traffic().sent_bytes - before.sent_bytes - scan.sent_bytes();
  EXPECT(others == 8 * 56 * num_neighbours, "the comparison of shapes sent {} bytes", others);
}

void a_shard_that_forgets_sends_first(Group& group) {
  const Shape shape{1, 2, 3, 4};
  const int P = group.size(), rank = group.rank();
  const OwnedTensor scratch({StateScan::scratch_numel(ScanStrategy::kChain, group, shape.numel(), 1)}, DType::kFloat32);
  StateScan scan(group, ScanStrategy::kChain, scratch);
  for (const Direction direction : {Direction::kForward, Direction::kReversed})
    for (const bool compared : {false, true}) {  // the first time neighbours compare shapes, and wait for each other
      const bool first_is_late = compared && P > 2;
      const int first = direction == Direction::kForward ? 0 : P - 1, last = P - 1 - first;
      const int before = direction == Direction::kForward ? rank - 1 : rank + 1;
      const States states(shape, DType::kFloat32), expected(shape, DType::kFloat32);
      ShardCarry shard;
      shard.numel = shape.numel();
      shard.forgets = true;
      shard.own = [&](const Tensor& carry) { fill_normal<float>(carry, 12, rank); };
      shard.advance = [&](const Tensor&, const Tensor& leaving) { fill_normal<float>(leaving, 12, rank); };
      OwnedTensor done({1}, DType::kInt64);
      if (first_is_late && rank == first) group.recv(done, last, kHost)->wait();
      scan.begin(direction, states.entering, states.leaving, shard, kHost);
      scan.finish(kHost);
      if (first_is_late && rank == last) group.send(done, first, kHost)->wait();
      fill_normal<float>(expected.entering, 12, before);
      fill_normal<float>(expected.leaving, 12, rank);
      EXPECT(rank == first || same_bits(states.entering, expected.entering), "the entering state is wrong");
      EXPECT(same_bits(states.leaving, expected.leaving), "the leaving state is wrong");
    }
}

void wrap_moves_the_last_to_the_first(Group& group) {
  StateScan scan(group, ScanStrategy::kChain);
  const int P = group.size(), rank = group.rank();
  for (const Direction direction : {Direction::kForward, Direction::kReversed}) {
    const int from = direction == Direction::kForward ? P - 1 : 0, to = P - 1 - from;
    std::vector<OwnedTensor> storage;
    std::vector<Tensor> leaving, entering;
    for (int layer = 0; layer < 3; ++layer) {
      for (std::vector<Tensor>* list : {&leaving, &entering}) {
        storage.emplace_back(Shape{1, 2, 4, 3 + layer}, DType::kFloat32);
        list->push_back(storage.back().tensor);
      }
      fill_normal<float>(leaving.back(), 8, rank * 10 + layer);
      fill_normal<float>(entering.back(), 9, rank * 10 + layer);
    }
    const int64_t wrapped_before = scan.wrapped_bytes(), sent_before = scan.sent_bytes();
    scan.wrap(direction, leaving, entering, kHost);
    for (int layer = 0; layer < 3; ++layer) {
      OwnedTensor expected(entering[layer].shape, DType::kFloat32);
      fill_normal<float>(expected, rank == to ? 8 : 9, (rank == to ? from : rank) * 10 + layer);
      EXPECT(same_bits(entering[layer], expected), "rank {} of {}: layer {} wrapped wrong", rank, P, layer);
    }
    const int64_t formula = P > 1 && rank == from ? 4 * 2 * 4 * (3 + 4 + 5) : 0;
    EXPECT(scan.wrapped_bytes() - wrapped_before == formula, "a wrap sent {} bytes, not {}",
           scan.wrapped_bytes() - wrapped_before, formula);
    EXPECT(scan.sent_bytes() == sent_before, "a wrap was counted as a scan");
  }
}

void shapes_that_differ_are_refused(Group& pair) {
  const auto attempt = [&](Direction direction, const Shape& shape, DType dtype) {
    OwnedTensor entering(shape, dtype), leaving(shape, dtype);
    StateScan scan(pair, ScanStrategy::kChain);
    scan.begin(direction, entering, leaving, {[](const Tensor&, const Tensor&) {}}, kHost);
  };
  const bool second = pair.rank() == 1;
  for (const Direction direction : {Direction::kForward, Direction::kReversed}) {
    expect_refusal(
        [&] {
          attempt(direction, second ? Shape{1, 2, 8, 16} : Shape{1, 2, 16, 8}, DType::kFloat32);
        },
        {"sp_rank 0", "sp_rank 1", "[1, 2, 16, 8]", "[1, 2, 8, 16]"});
    expect_refusal(
        [&] {
          attempt(direction, {1, 2, 8, 8}, second ? DType::kFloat64 : DType::kFloat32);
        },
        {"sp_rank 0", "sp_rank 1", "float32 [1, 2, 8, 8]", "float64 [1, 2, 8, 8]"});
  }
}

}  // namespace baton::checks
