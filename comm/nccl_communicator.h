// Inside comm only: owns one NCCL communicator, and never waits for it without a deadline.
#pragma once

#include <nccl.h>

#include <array>
#include <memory>
#include <string>

#include "comm/group.h"
#include "comm/nccl.h"
#include "runtime/cuda.h"
#include "runtime/profiler.h"

namespace baton {

/// One call on its way. Kept for a while after it was waited for, so that a message can name what hangs.
struct Operation {
  std::string describe() const;

  const char* what = "";  // sends, receives, exchanges, or a collective's name
  int64_t bytes = 0;
  int64_t peer = -1;  // a world_rank
  bool captured = false;
  RangePath where;  // it was issued
  cuda::Event over;
};

class Communicator {
 public:
  /// Collective over `host`. who: the words for this rank and group in messages.
  Communicator(Group& host, const NcclOptions& options, std::string who, double deadline_s);
  /// Finalises; aborts after a failure or where an exception is in flight.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  ncclComm_t handle() const { return comm_; }

  /// Runs calls(comm) between ncclGroupStart and ncclGroupEnd, and waits until they are on their stream. calls returns
  /// the first result that is not ncclSuccess.
  template <class F>
  void run(const char* what, F&& calls) {
    check_usable();
    check(ncclGroupStart(), "ncclGroupStart");
    const ncclResult_t called = calls(comm_);
    const ncclResult_t ended = ncclGroupEnd();
    settle(called == ncclSuccess || called == ncclInProgress ? ended : called, what);
  }

  /// Waits until all but the last kInFlight operations have ended. A host that ran on behind a message that never comes
  /// would fill the device's queue of launches and be stuck there, where nothing looks at deadlines.
  void pace();

  std::shared_ptr<Operation> new_operation(const char* what, int64_t bytes, int64_t peer);

  /// Of every wait from now on.
  void set_deadline(double seconds) { deadline_s_ = seconds; }

  /// Throws where NCCL has noticed an error since in any communicator of the process.
  static void check_all();
  /// The watch of the host's waits for the device: also throws where a call has not ended within its deadline.
  static void watch(double waited_s);
  /// Aborts every communicator, then throws LostRank with this message.
  [[noreturn]] static void fail(const std::string& message);

 private:
  /// So many that a model's step fits.
  static constexpr size_t kRemembered = 64;
  /// A layer has one or two and some 50 launches; the queue of a device holds about 1,000.
  static constexpr size_t kInFlight = 8;

  friend void abort_nccl_groups(const char*) noexcept;
  void check_usable() const;
  void check(ncclResult_t result, const char* what);
  void settle(ncclResult_t result, const char* what);
  const Operation* oldest_unfinished() const;
  bool finalize() noexcept;

  ncclComm_t comm_ = nullptr;
  std::string name_, who_;  // NCCL keeps a pointer to the name
  double deadline_s_;
  int exceptions_at_start_;
  std::array<std::shared_ptr<Operation>, kRemembered> operations_;
  size_t num_issued_ = 0;
};

}  // namespace baton
