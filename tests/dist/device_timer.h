// Times of work on a device that all ranks of a group do together.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "comm/group.h"
#include "runtime/cuda.h"

namespace baton {

inline void check_cuda(cudaError_t result, const char* what) {
  CHECK(result == cudaSuccess, "{}: {}", what, cudaGetErrorString(result));
}

inline cudaStream_t handle_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

class Timer {
 public:
  Timer() {
    check_cuda(cudaEventCreate(&start_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Timer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Median, over `repeats` runs that all ranks start together, of the slowest rank's microseconds.
  template <class F>
  double median_us(Group& group, const Stream& stream, int repeats, F&& f) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      group.synchronize(stream);
      group.barrier();
      check_cuda(cudaEventRecord(start_, handle_of(stream)), "cudaEventRecord");
      f();
      check_cuda(cudaEventRecord(end_, handle_of(stream)), "cudaEventRecord");
      group.synchronize(stream);
      float ms = 0;
      check_cuda(cudaEventElapsedTime(&ms, start_, end_), "cudaEventElapsedTime");
      times.push_back(all_reduce(group, 1e3 * ms, ReduceOp::kMax));
    }
    std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
    return times[repeats / 2];
  }

 private:
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace baton
