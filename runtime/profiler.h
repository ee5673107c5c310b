// Where a thread is, in named ranges: told to a profiler of CUDA (NVTX), and found in messages about what hangs. A
// build without the CUDA backend tells no profiler.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace baton {

/// The ranges a thread was in at some time, outermost first.
struct RangePath {
  struct Name {
    const char* text;
    int64_t index;  // negative: none
  };
  static constexpr int kMax = 8;  // what is deeper is left out
  std::array<Name, kMax> names{};
  int depth = 0;

  /// " in step 12, backward, layer 3, mixer", to be put behind a phrase; empty outside all ranges.
  std::string str() const;
};

/// Those of this thread now.
const RangePath& current_ranges();

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

/// To NVTX; index as in RangePath.
void push_range(const char* name, int64_t index);
void pop_range();

/// From start to stop a profiler that waits for it (nsys --capture-range=cudaProfilerApi) records. Needs a device.
void start_profiler();
void stop_profiler();

}  // namespace cuda
}  // namespace baton
