// What a profiler of CUDA is told: named ranges on the host's time line (NVTX), and which steps to record. A build
// without the CUDA backend tells nothing.
#pragma once

#include <cstdint>

namespace baton {

/// A range of this thread that ends with the scope. Ranges nest; without a profiler one costs a few nanoseconds.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name);
  /// "name index", such as "layer 3".
  ProfilerRange(const char* name, int64_t index);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
  /// Ends here, and begins the next phase of the scope.
  void next(const char* name);
};

namespace cuda {

/// From start to stop a profiler that waits for it (nsys --capture-range=cudaProfilerApi) records. Needs a device.
void start_profiler();
void stop_profiler();

}  // namespace cuda
}  // namespace baton
