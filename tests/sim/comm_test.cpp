// Every check of tests/comm_checks.h over in-process ranks, and what only they can show.
#include <gtest/gtest.h>

#include "runtime/memory.h"
#include "tests/comm_checks.h"
#include "tests/run_ranks.h"

namespace baton {
namespace {

const Stream kHost{};

class Comm : public testing::TestWithParam<int> {};

TEST_P(Comm, AllReduceIsExact) { run_ranks(GetParam(), checks::all_reduce_is_exact); }
TEST_P(Comm, BroadcastAndGather) { run_ranks(GetParam(), checks::broadcast_and_gather); }
TEST_P(Comm, ZeroBytesSendNothing) { run_ranks(GetParam(), checks::zero_bytes_send_nothing); }
TEST_P(Comm, ScanIsSerialComposition) { run_ranks(GetParam(), checks::scan_is_serial_composition); }
TEST_P(Comm, StrategiesAreSerialComposition) { run_ranks(GetParam(), checks::strategies_are_serial_composition); }
TEST_P(Comm, AShardThatForgetsSendsFirst) { run_ranks(GetParam(), checks::a_shard_that_forgets_sends_first); }
TEST_P(Comm, WrapMovesTheLastToTheFirst) { run_ranks(GetParam(), checks::wrap_moves_the_last_to_the_first); }
TEST_P(Comm, TogetherAgrees) { run_ranks(GetParam(), checks::together_agrees); }

TEST_P(Comm, EverythingUnderRandomDelays) {
  for (const uint64_t seed : {1, 2}) {
    run_ranks(
        GetParam(),
        [seed](Group& group) {
          checks::order_is_kept(group, seed);
          checks::scan_is_serial_composition(group);
          checks::strategies_are_serial_composition(group);
          checks::a_shard_that_forgets_sends_first(group);
          checks::wrap_moves_the_last_to_the_first(group);
          checks::together_agrees(group);
        },
        seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Comm, testing::Range(1, 18));

TEST(CommPair, ShapesThatDifferAreRefused) { run_ranks(2, checks::shapes_that_differ_are_refused); }
TEST(CommPair, TooLittleScratchIsRefused) { run_ranks(2, checks::too_little_scratch_is_refused); }
TEST(CommPair, AWaitEndsAtItsDeadline) {
  // Rank 1 stays until rank 0 has given up, or rank 0 would hear that it has left.
  run_ranks(2, [](Group& pair) {
    checks::a_wait_ends_at_its_deadline(pair, 0);
    pair.set_deadline(60);
    pair.barrier();
  });
}
TEST(CommPair, AMessageOfAnotherSizeIsRefused) {
  run_ranks(2, [](Group& pair) { checks::a_message_of_another_size_is_refused(pair, 0); });
}

TEST(CommPair, WhoWaitsForARankThatLeftIsToldSo) {
  run_ranks(2, [](Group& pair) {
    OwnedTensor x({4}, DType::kFloat32);
    if (pair.rank() == 0) checks::expect_refusal([&] { pair.recv(x, 1, kHost)->wait(); }, {"rank 0", "rank 1", "left"});
  });
}

TEST(CommPair, AMessageSentBeforeLeavingArrives) {
  run_ranks(2, [](Group& pair) {
    OwnedTensor x({4}, DType::kFloat32);
    if (pair.rank() == 1) pair.send(x, 0, kHost)->wait();
    if (pair.rank() == 0) pair.recv(x, 1, kHost)->wait();
  });
}

}  // namespace
}  // namespace baton
