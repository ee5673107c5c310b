#include "runtime/stop_request.h"

#include <atomic>
#include <csignal>
#include <ctime>

namespace baton {
namespace {

// Lock-free, so a handler may write it; clock_gettime is async-signal-safe.
std::atomic<long long> requested_at_ns{0};

long long now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<long long>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

void on_signal(int) {
  long long none = 0;
  requested_at_ns.compare_exchange_strong(none, now_ns());
}

}  // namespace

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

double seconds_since_stop_request() {
  const long long at = requested_at_ns.load();
  return at == 0 ? -1.0 : static_cast<double>(now_ns() - at) * 1e-9;
}

}  // namespace baton
