// Every check of tests/comm_checks.h over MPI: mpirun -np 4 build/tests/comm_dist_test. Returns 0 on every rank or 1 on
// every rank.
#include <cstdio>

#include "comm/together.h"
#include "comm/world.h"
#include "tests/comm_checks.h"

namespace baton {
namespace {

/// Two pieces of the transport and a little.
constexpr int64_t kLargeBytes = (int64_t{128} << 20) + 12;

void run_checks(World& world, Group& group) {
  checks::all_reduce_is_exact(group);
  checks::broadcast_and_gather(group);
  checks::order_is_kept(group, 1);
  checks::zero_bytes_send_nothing(group);
  checks::scan_is_serial_composition(group);
  checks::wrap_moves_the_last_to_the_first(group);
  checks::together_agrees(group);
  if (group.size() == 2) checks::large_messages(group, kLargeBytes);

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
    baton::run_checks(world, *group);
  } catch (const baton::Error& e) {
    // Checks are collective: a rank that fails one leaves the others waiting, so the job ends here.
    std::fprintf(stderr, "rank %d of %d: %s\n", world.rank(), world.size(), e.describe().c_str());
    world.abort(1);
  }
  return 0;
}
