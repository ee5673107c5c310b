// Who owns what: pure arithmetic of ranks and shards.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/error.h"

namespace baton {

struct Range {
  int64_t first = 0, last = 0;  // [first, last)
  int64_t size() const { return last - first; }
  bool operator==(const Range&) const = default;
};

/// Part r of P of n tokens: [floor(r n / P), floor((r + 1) n / P)). Parts may be uneven or empty.
inline Range shard_of(int64_t n, int64_t P, int64_t r) { return {r * n / P, (r + 1) * n / P}; }

/// n where ranks [0, n), [n, 2 n), ... each are on one host, as many as the first host has; else 1. hosts: of each
/// rank.
int even_node_size(const std::vector<int64_t>& hosts);

/// world_rank = dp_rank * sp_size + sp_rank. An sp_group shares a sequence; dp groups hold different ones.
struct Topology {
  int world_size = 1, world_rank = 0, sp_size = 1;

  /// `parallel.sp` = 0 means all ranks. Throws an input error where sp does not divide the world.
  static Topology make(int world_size, int world_rank, int parallel_sp);

  int dp_size() const { return world_size / sp_size; }
  int dp_rank() const { return world_rank / sp_size; }
  int sp_rank() const { return world_rank % sp_size; }
};

}  // namespace baton
