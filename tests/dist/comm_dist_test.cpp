// Every check of tests/comm_checks.h over MPI; returns 0 on every rank or 1 on every rank. With arguments only that of
// delays_change_no_bit, of so many scans and delays of up to so many ms:
//   mpirun -np 4 build/tests/comm_dist_test
//   mpirun -np 8 build/tests/comm_dist_test 2000 50
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <utility>

#include "comm/together.h"
#include "comm/world.h"
#include "runtime/memory.h"
#include "tests/comm_checks.h"

namespace baton {
namespace {

/// Two pieces of the transport and a little.
constexpr int64_t kLargeBytes = (int64_t{128} << 20) + 12;
constexpr int kDelayedScans = 100;
constexpr double kMaxDelaySeconds = 5e-3;

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Rank 0 is late; the others wait for it and must leave their cores alone.
void waiting_ranks_leave_the_core(Group& group) {
  constexpr double kLateSeconds = 1, kCoreShare = 0.05;
  OwnedTensor x({1000}, DType::kFloat32);
  const std::vector<std::pair<const char*, std::function<void()>>> waits{
      {"recv", [&] { group.recv(x, 0, {})->wait(); }},
      {"all_reduce", [&] { group.all_reduce(x, ReduceOp::kSum, {}); }},
      {"barrier", [&] { group.barrier(); }}};
  for (const auto& [name, wait] : waits) {
    group.barrier();
    if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::duration<double>(kLateSeconds));
    const double before = cpu_seconds();
    if (group.rank() > 0 || std::string(name) != "recv") wait();
    if (group.rank() == 0 && std::string(name) == "recv")
      for (int r = 1; r < group.size(); ++r) group.send(x, r, {})->wait();
    const double share =
        all_reduce(group, group.rank() > 0 ? (cpu_seconds() - before) / kLateSeconds : 0, ReduceOp::kMax);
    if (group.rank() == 0) std::printf("%-10s a waiting rank uses %.1f%% of a core\n", name, 100 * share);
    CHECK(share < kCoreShare, "a rank that waits in {} uses {}% of a core", name, 100 * share);
  }
}

void run_checks(World& world, Group& group) {
  checks::all_reduce_is_exact(group);
  checks::broadcast_and_gather(group);
  checks::order_is_kept(group, 1);
  checks::zero_bytes_send_nothing(group);
  checks::scan_is_serial_composition(group);
  checks::strategies_are_serial_composition(group);
  checks::delays_change_no_bit(group, kDelayedScans, kMaxDelaySeconds);
  checks::a_shard_that_forgets_sends_first(group);
  checks::wrap_moves_the_last_to_the_first(group);
  checks::together_agrees(group);
  if (group.size() == 2) checks::large_messages(group, kLargeBytes);

  if (group.size() > 1) waiting_ranks_leave_the_core(group);

  // Groups of two, and of one where the number of ranks is odd.
  const auto pair = world.split(world.rank() / 2);
  CHECK(pair->rank() == world.rank() % 2, "rank {} of the world is rank {} of its pair", world.rank(), pair->rank());
  checks::scan_is_serial_composition(*pair);
  if (pair->size() == 2) {
    const int first = world.rank() - pair->rank();
    checks::shapes_that_differ_are_refused(*pair);
    checks::a_message_of_another_size_is_refused(*pair, first);
    checks::a_wait_ends_at_its_deadline(*pair, first);
  }
  group.barrier();
  CHECK(world.local_size() == world.size() && world.local_rank() == world.rank(), "all ranks are on this host");
  CHECK(world.default_threads() >= 1, "{} threads", world.default_threads());
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::World world(&argc, &argv);
  const auto group = world.group();
  group->set_deadline(60);
  try {
    if (argc == 3)
      baton::checks::delays_change_no_bit(*group, std::atoi(argv[1]), 1e-3 * std::atof(argv[2]));
    else
      baton::run_checks(world, *group);
  } catch (const baton::Error& e) {
    // Checks are collective: a rank that fails one leaves the others waiting, so the job ends here.
    std::fprintf(stderr, "rank %d of %d: %s\n", world.rank(), world.size(), e.describe().c_str());
    world.abort(1);
  }
  return 0;
}
