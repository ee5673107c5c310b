#include "comm/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "comm/patience.h"

namespace baton {
namespace {

constexpr double kAbortSeconds = 5;

/// Those of this process. A failure of one must end what waits in the others.
std::vector<Communicator*>& communicators() {
  static std::vector<Communicator*> list;
  return list;
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
  communicators().push_back(this);
  try {
    settle(ncclCommInitRankConfig(&comm_, host.size(), id, host.rank(), &config), "joining the communicator",
           deadline_s);
  } catch (...) {
    std::erase(communicators(), this);
    throw;
  }
}

Communicator::~Communicator() {
  std::erase(communicators(), this);
  if (comm_ == nullptr) return;
  if (std::uncaught_exceptions() == exceptions_at_start_ && finalize()) return;
  communicators().push_back(this);
  abort_nccl_groups();
  std::erase(communicators(), this);
}

bool Communicator::finalize() noexcept {
  ncclResult_t result = ncclCommFinalize(comm_);
  Patience patience(deadline_s_);
  while (result == ncclInProgress && patience.pause())
    if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) return false;
  return result == ncclSuccess && ncclCommDestroy(std::exchange(comm_, nullptr)) == ncclSuccess;
}

void Communicator::check_usable() const {
  CHECK(comm_ != nullptr, "{}: used after its communicator was aborted", who_);
}

void Communicator::check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  fail(fmt::format("{}: {}: {} ({})", who_, what, ncclGetErrorString(result), ncclGetLastError(comm_)));
}

void Communicator::settle(ncclResult_t result, const char* what, double deadline_s) {
  Patience patience(deadline_s);
  while (result == ncclInProgress) {
    if (!patience.pause()) fail(fmt::format("{}: {}: NCCL has not come back within {} s", who_, what, deadline_s));
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
  return operation;
}

std::string Operation::describe() const {
  if (peer < 0) return fmt::format("{} of {} bytes", what, bytes);
  return fmt::format("{} {} bytes {} world_rank {}", what, bytes, *what == 's' ? "to" : "from", peer);
}

void Communicator::check_async() {
  for (Communicator* c : communicators()) {
    c->check_usable();
    ncclResult_t result = ncclSuccess;
    c->check(ncclCommGetAsyncError(c->comm_, &result), "asking for errors");
    if (result != ncclInProgress) c->check(result, "reported while waiting");
  }
}

std::string Communicator::oldest_unfinished() {
  for (const Communicator* c : communicators())
    for (size_t i = c->num_issued_ > kRemembered ? c->num_issued_ - kRemembered : 0; i < c->num_issued_; ++i) {
      const Operation& operation = *c->operations_[i % kRemembered];
      if (!operation.captured && !operation.over.done()) return fmt::format("{}, {}", c->name_, operation.describe());
    }
  return "the device's own work";
}

void Communicator::fail(const std::string& message) {
  abort_nccl_groups();
  throw Error(ExitCode::kTransport, message);
}

void abort_nccl_groups() noexcept {
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
    std::fprintf(stderr, "baton: NCCL could not be aborted within %g s; this process ends\n", kAbortSeconds);
    std::_Exit(static_cast<int>(ExitCode::kTransport));
  }
}

AbortOnUnwind::AbortOnUnwind() : exceptions_at_start_(std::uncaught_exceptions()) {}
AbortOnUnwind::~AbortOnUnwind() {
  if (std::uncaught_exceptions() > exceptions_at_start_) abort_nccl_groups();
}

std::string nccl_version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) return "";
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace baton
