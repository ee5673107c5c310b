// Patience: how a rank waits for another without burning the core that the other may need.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace baton {

class Patience {
 public:
  explicit Patience(double deadline_s) : deadline_s_(deadline_s), start_(Clock::now()) {}

  /// Pauses between two looks: not at all, then yielding, then asleep for a sixteenth of what has been waited, so that
  /// the delay it adds stays small beside the wait itself. False once the deadline has passed.
  bool pause() {
    if (++num_looks_ < kSpins) return true;
    const auto waited = Clock::now() - start_;
    if (waited > std::chrono::duration<double>(deadline_s_)) return false;
    if (waited < kYieldFor) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 16, kShortestSleep, kLongestSleep));
    }
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kSpins = 16;
  static constexpr std::chrono::microseconds kYieldFor{200}, kShortestSleep{20}, kLongestSleep{1000};

  double deadline_s_;
  Clock::time_point start_;
  int num_looks_ = 0;
};

}  // namespace baton
