// Times of work that all ranks of a group begin together: events of the device, or the host's clock.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "comm/group.h"
#include "launch/bench.h"
#include "runtime/cuda.h"

namespace baton {

class GroupTimer {
 public:
  GroupTimer(Group& group, const Stream& stream, int64_t repeats) : group_(group), stream_(stream), repeats_(repeats) {
    if (stream.device.type == DeviceType::kCpu) return;
    for (auto& event : events_) event = std::make_unique<cuda::Event>(/*timed=*/true);
  }

  /// Median seconds of the slowest rank.
  double median_of(const std::function<void()>& call) {
    std::vector<double> seconds;
    for (int64_t i = 0; i <= repeats_; ++i) {
      group_.synchronize(stream_);
      group_.barrier();
      mark(0);
      call();
      mark(1);
      group_.synchronize(stream_);
      const double passed = events_[0] ? events_[1]->seconds_since(*events_[0]) : wall_[1] - wall_[0];
      if (i > 0) seconds.push_back(all_reduce(group_, passed, ReduceOp::kMax));  // the first warms up
    }
    return median(seconds);
  }

  /// The same where the device alone counts: of a CUDA graph of the call, which has run before; on the CPU of the call.
  double device_median_of(const std::function<void()>& call) {
    if (stream_.device.type == DeviceType::kCpu) return median_of(call);
    call();
    const cuda::Graph graph(stream_, call);
    return median_of([&] { graph.launch(stream_); });
  }

 private:
  void mark(int i) {
    if (events_[i]) return events_[i]->record(stream_);
    wall_[i] = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  Group& group_;
  Stream stream_;
  int64_t repeats_;
  double wall_[2] = {};
  std::unique_ptr<cuda::Event> events_[2];
};

}  // namespace baton
