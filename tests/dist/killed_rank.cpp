// Rank 1 dies while the others wait for it in the way that argv[1] names: recv, all_reduce or finalize. Started by
// killed_rank_test.py.
#include <csignal>
#include <string>

#include "comm/world.h"
#include "runtime/memory.h"

int main(int argc, char** argv) {
  baton::World world(&argc, &argv);
  const auto group = world.group();
  const std::string way = argv[1];
  const baton::Stream host{};
  baton::OwnedTensor x({1000}, baton::DType::kFloat32);
  group->barrier();
  if (world.rank() == 1) std::raise(SIGKILL);
  if (way == "recv") group->recv(x, 1, host)->wait();
  if (way == "all_reduce") group->all_reduce(x, baton::ReduceOp::kSum, host);
  return 0;
}
