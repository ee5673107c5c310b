// The operator over MPI: mpirun -np 4 build/tests/operator_dist_test. Returns 0 or 1 on every rank. With the argument
// `traffic` only what ranks send, for many of them:
//   mpirun -np 32 --oversubscribe build/tests/operator_dist_test traffic
#include <cstdio>
#include <string>

#include "comm/world.h"
#include "tests/operator_checks.h"

int main(int argc, char** argv) {
  baton::World world(&argc, &argv);
  const auto group = world.group();
  group->set_deadline(60);
  try {
    baton::checks::traffic_is_the_formula_at_any_length(*group);
    if (argc == 1) baton::checks::operator_has_the_bits_of_simulated_ranks(*group, {});
  } catch (const baton::Error& e) {
    std::fprintf(stderr, "rank %d of %d: %s\n", world.rank(), world.size(), e.describe().c_str());
    world.abort(1);
  }
  return 0;
}
