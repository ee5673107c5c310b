// World: the MPI ranks of a job. One object, made first in main and destroyed last.
#pragma once

#include <memory>

#include "comm/group.h"
#include "comm/topology.h"

namespace baton {

class World {
 public:
  /// Initialises MPI (MPI_THREAD_SERIALIZED). Where a host has more ranks than cores, idle ranks yield.
  World(int* argc, char*** argv);
  /// Finalises MPI unless abort() was called or an exception is in flight.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  // rank among those of this host (MPI_Comm_split_type)
  int local_size() const;
  int host() const;  // the lowest rank of this host
  /// The cores that this host's ranks may use together, divided by their number; no more than this process is bound to
  /// (a launcher may bind each rank to one core), at least 1.
  int default_threads() const;

  /// All ranks, and the ranks of one colour in order of world_rank (collective). Groups must not outlive the World.
  std::unique_ptr<Group> group();
  std::unique_ptr<Group> split(int color);

  /// Prints nothing; takes the whole job down with this code. For where ranks cannot agree.
  [[noreturn]] void abort(int code);

 private:
  int local_rank_ = 0, local_size_ = 1, host_ = 0, default_threads_ = 1;
  int exceptions_at_start_ = 0;
};

}  // namespace baton
