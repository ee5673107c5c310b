// Times of work on a device that all ranks of a group do together.
#pragma once

#include <algorithm>
#include <vector>

#include "comm/group.h"
#include "runtime/cuda.h"

namespace baton {

class Timer {
 public:
  /// Median, over `repeats` runs that all ranks start together, of the slowest rank's microseconds.
  template <class F>
  double median_us(Group& group, const Stream& stream, int repeats, F&& f) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      group.synchronize(stream);
      group.barrier();
      start_.record(stream);
      f();
      end_.record(stream);
      group.synchronize(stream);
      times.push_back(all_reduce(group, 1e6 * end_.seconds_since(start_), ReduceOp::kMax));
    }
    std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
    return times[repeats / 2];
  }

 private:
  cuda::Event start_{true}, end_{true};
};

}  // namespace baton
