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

}  // namespace baton
