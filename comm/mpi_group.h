// Inside comm only: the MPI transport, and the check around every MPI call.
#pragma once

#define OMPI_SKIP_MPICXX  // the C interface alone: the C++ one would have to be linked too
#include <mpi.h>

#include "comm/group.h"

namespace baton {

/// The group of a communicator, which it owns from then on.
std::unique_ptr<Group> make_mpi_group(MPI_Comm comm);

/// Throws Error(kTransport) with MPI's own words for the code.
[[noreturn]] void fail_mpi(int code, const char* call, const char* file, int line);

}  // namespace baton

#define MPI_CHECK(call)                                                    \
  do {                                                                     \
    if (const int mpi_code = (call); mpi_code != MPI_SUCCESS) [[unlikely]] \
      ::baton::fail_mpi(mpi_code, #call, __FILE__, __LINE__);              \
  } while (false)
