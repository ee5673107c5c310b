#include "comm/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <thread>
#include <utility>

#include "comm/patience.h"

namespace baton {
namespace {

constexpr double kAbortSeconds = 5;

/// Those of this process, which share one watch. A failure of one must end what waits in the others.
std::vector<Communicator*>& communicators() {
  static std::vector<Communicator*> list;
  return list;
}

void add(Communicator* communicator) {
  if (communicators().empty()) cuda::set_watch({&Communicator::watch, [] { abort_nccl_groups(); }});
  communicators().push_back(communicator);
}

void remove(Communicator* communicator) {
  std::erase(communicators(), communicator);
  if (communicators().empty()) cuda::set_watch({});
}

ncclUniqueId make_id(Group& host) {
  ncclUniqueId id{};
  together(host, [&] {
    if (host.rank() != 0) return;
    const ncclResult_t result = ncclGetUniqueId(&id);
    CHECK(result == ncclSuccess, "NCCL cannot make an id: {} ({})", ncclGetErrorString(result),
          ncclGetLastError(nullptr));
  });
  const std::string bytes = broadcast(host, std::string(id.internal, sizeof(id.internal)), 0);
  std::memcpy(id.internal, bytes.data(), sizeof(id.internal));
  return id;
}

ncclConfig_t make_config(const NcclOptions& options, const std::string& name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name.c_str();
  if (options.max_ctas > 0) {
    config.minCTAs = 1;
    config.maxCTAs = options.max_ctas;
    config.cgaClusterSize = 0;  // blocks of a cluster must all be placed at once, beside a busy device's other work
  }
  return config;
}

}  // namespace

Communicator::Communicator(Group& host, const NcclOptions& options, std::string who, double deadline_s)
    : name_(options.name),
      who_(std::move(who)),
      deadline_s_(deadline_s),
      exceptions_at_start_(std::uncaught_exceptions()) {
  const ncclUniqueId id = make_id(host);
  ncclConfig_t config = make_config(options, name_);
  add(this);
  try {
    settle(ncclCommInitRankConfig(&comm_, host.size(), id, host.rank(), &config), "joining the communicator");
  } catch (...) {
    remove(this);
    throw;
  }
}

Communicator::~Communicator() {
  if (comm_ != nullptr && (std::uncaught_exceptions() != exceptions_at_start_ || !finalize())) abort_nccl_groups();
  remove(this);
}

bool Communicator::finalize() noexcept {
  ncclResult_t result = ncclCommFinalize(comm_);
  Patience patience(deadline_s_);
  while (result == ncclInProgress && patience.pause())
    if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) return false;
  if (result != ncclSuccess) return false;
  static_cast<void>(ncclCommDestroy(std::exchange(comm_, nullptr)));  // local: nobody else waits for it
  return true;
}

void Communicator::check_usable() const {
  CHECK(comm_ != nullptr, "{}: used after its communicator was aborted", who_);
}

void Communicator::check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  fail(fmt::format("{}: {}{}: {} ({})", who_, what, current_ranges().str(), ncclGetErrorString(result),
                   ncclGetLastError(comm_)));
}

void Communicator::settle(ncclResult_t result, const char* what) {
  Patience patience(deadline_s_);
  while (result == ncclInProgress) {
    if (!patience.pause())
      fail(
          fmt::format("{}: {}{}: NCCL has not come back within {} s", who_, what, current_ranges().str(), deadline_s_));
    if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess) result = asked;
  }
  check(result, what);
}

std::shared_ptr<Operation> Communicator::new_operation(const char* what, int64_t bytes, int64_t peer) {
  std::shared_ptr<Operation>& operation = operations_[num_issued_++ % kRemembered];
  if (!operation || operation.use_count() > 1) operation = std::make_shared<Operation>();
  operation->what = what;
  operation->bytes = bytes;
  operation->peer = peer;
  operation->where = current_ranges();
  return operation;
}

void Communicator::pace() {
  if (num_issued_ < kInFlight) return;
  const Operation& operation = *operations_[(num_issued_ - kInFlight) % kRemembered];
  if (operation.captured) return;
  const auto start = std::chrono::steady_clock::now();
  Patience patience(std::numeric_limits<double>::infinity());
  while (!operation.over.done()) {
    watch(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    patience.pause();
  }
}

std::string Operation::describe() const {
  if (peer < 0) return fmt::format("{} of {} bytes{}", what, bytes, where.str());
  return fmt::format("{} {} bytes {} world_rank {}{}", what, bytes, *what == 's' ? "to" : "from", peer, where.str());
}

void Communicator::check_all() {
  for (Communicator* c : communicators()) {
    c->check_usable();
    ncclResult_t result = ncclSuccess;
    c->check(ncclCommGetAsyncError(c->comm_, &result), "asking for errors");
    if (result != ncclInProgress) c->check(result, "reported while waiting");
  }
}

const Operation* Communicator::oldest_unfinished() const {
  for (size_t i = num_issued_ > kRemembered ? num_issued_ - kRemembered : 0; i < num_issued_; ++i) {
    const Operation& operation = *operations_[i % kRemembered];
    if (!operation.captured && !operation.over.done()) return &operation;
  }
  return nullptr;
}

void Communicator::watch(double waited_s) {
  check_all();
  double longest = 0;
  for (const Communicator* c : communicators()) {
    longest = std::max(longest, c->deadline_s_);
    if (waited_s <= c->deadline_s_) continue;
    if (const Operation* operation = c->oldest_unfinished())
      fail(fmt::format("{}: {}: nothing within {} s", c->who_, operation->describe(), c->deadline_s_));
  }
  // What runs in a graph is not known one by one.
  if (waited_s > longest)
    fail(fmt::format("{}: the device has not ended its work{} within {} s", communicators().front()->who_,
                     current_ranges().str(), longest));
}

void Communicator::fail(const std::string& message) {
  abort_nccl_groups(message.c_str());
  throw LostRank(message);
}

void abort_nccl_groups(const char* why) noexcept {
  // All at once: an abort waits for its kernels, and those may wait behind another communicator's.
  static std::atomic<int> num_running{0};
  for (Communicator* c : communicators()) {
    ncclComm_t comm = std::exchange(c->comm_, nullptr);
    if (comm == nullptr) continue;
    ++num_running;
    std::thread([comm] {
      ncclCommAbort(comm);
      --num_running;
    }).detach();
  }
  Patience patience(kAbortSeconds);
  while (num_running > 0) {
    if (patience.pause()) continue;
    std::fprintf(stderr, "baton: %s%sNCCL could not be aborted within %g s; this process ends\n", why,
                 *why == '\0' ? "" : "; ", kAbortSeconds);
    std::_Exit(static_cast<int>(ExitCode::kTransport));
  }
}

std::string nccl_version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) return "";
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace baton
