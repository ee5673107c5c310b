#include "comm/world.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "comm/mpi_group.h"
#include "comm/patience.h"

namespace baton {
namespace {

constexpr double kFinalizeSeconds = 600;

cpu_set_t bound_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CHECK(sched_getaffinity(0, sizeof(cores), &cores) == 0, "cannot read which cores this process may use");
  return cores;
}

/// Settings of Open MPI that must stand in the environment before MPI_Init; the user's own win.
void prepare_environment() {
  const char* local_size = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const cpu_set_t cores = bound_cores();
  if (local_size != nullptr && std::atoi(local_size) > CPU_COUNT(&cores))
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
}

}  // namespace

World::World(int* argc, char*** argv) : exceptions_at_start_(std::uncaught_exceptions()) {
  prepare_environment();
  int provided = 0;
  MPI_CHECK(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided));
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  CHECK(provided >= MPI_THREAD_SERIALIZED, "this MPI library does not offer MPI_THREAD_SERIALIZED");

  MPI_Comm host;
  MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &host));
  MPI_CHECK(MPI_Comm_rank(host, &local_rank_));
  MPI_CHECK(MPI_Comm_size(host, &local_size_));
  host_ = rank();
  MPI_CHECK(MPI_Bcast(&host_, 1, MPI_INT, 0, host));
  const cpu_set_t mine = bound_cores();
  cpu_set_t all = mine;
  MPI_CHECK(MPI_Allreduce(MPI_IN_PLACE, &all, sizeof(all), MPI_BYTE, MPI_BOR, host));
  MPI_CHECK(MPI_Comm_free(&host));
  default_threads_ = std::max(1, std::min(CPU_COUNT(&all) / local_size_, CPU_COUNT(&mine)));
}

World::~World() {
  // A rank that unwinds must not wait for the others in MPI_Finalize: its end takes the job down.
  if (std::uncaught_exceptions() != exceptions_at_start_) return;
  // MPI_Finalize waits for all ranks with its core busy; this wait does not.
  MPI_Request all_here;
  if (MPI_Ibarrier(MPI_COMM_WORLD, &all_here) == MPI_SUCCESS) {
    Patience patience(kFinalizeSeconds);
    int complete = 0;
    while (MPI_Test(&all_here, &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && !complete && patience.pause()) continue;
  }
  MPI_Finalize();
}

int World::rank() const {
  int rank = 0;
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  return rank;
}

int World::size() const {
  int size = 1;
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
  return size;
}

int World::local_rank() const { return local_rank_; }
int World::local_size() const { return local_size_; }
int World::host() const { return host_; }
int World::default_threads() const { return default_threads_; }

std::unique_ptr<Group> World::group() {
  MPI_Comm comm;
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
  return make_mpi_group(comm);
}

std::unique_ptr<Group> World::split(int color) {
  CHECK(color >= 0, "a colour must not be negative, got {}", color);
  MPI_Comm comm;
  MPI_CHECK(MPI_Comm_split(MPI_COMM_WORLD, color, rank(), &comm));
  return make_mpi_group(comm);
}

void World::abort(int code) {
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

}  // namespace baton
