#include "comm/topology.h"

namespace baton {

Topology Topology::make(int world_size, int world_rank, int parallel_sp) {
  CHECK(world_size >= 1 && world_rank >= 0 && world_rank < world_size, "world_rank {} is not in a world of {} ranks",
        world_rank, world_size);
  CHECK_INPUT(parallel_sp >= 0, "parallel.sp = {}: it must be 0 (all ranks) or more", parallel_sp);
  const int sp_size = parallel_sp == 0 ? world_size : parallel_sp;
  CHECK_INPUT(world_size % sp_size == 0, "parallel.sp = {}: it must divide the number of ranks, which is {}",
              parallel_sp, world_size);
  return {world_size, world_rank, sp_size};
}

int even_node_size(const std::vector<int64_t>& hosts) {
  size_t n = 1;
  while (n < hosts.size() && hosts[n] == hosts[0]) ++n;
  for (size_t r = 0; r < hosts.size(); ++r)
    if (hosts.size() % n != 0 || hosts[r] != hosts[r / n * n]) return 1;
  return static_cast<int>(n);
}

}  // namespace baton
