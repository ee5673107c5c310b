// baton doctor: does everything that a run on several ranks needs work here? MPI, then devices, then NCCL, each stage
// only after the one before; no wait lasts longer than its deadline.
//
//   baton doctor
//   mpirun -np 2 baton doctor --deadline 20
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/device.h"
#include "launch/options.h"

namespace baton {

struct DoctorOptions {
  double deadline_s = 60;  // of one wait
};

/// Of the command's flags; throws input errors.
DoctorOptions parse_doctor_options(const Command& command);

/// Collective. kDone, or kComparison where a stage failed; every rank that saw a fault says so in one sentence. Where a
/// rank does not come back at all, the job is aborted with that code.
ExitCode run_doctor(const DoctorOptions& options, World& world);

/// What the stages share. Stages talk over `work`; whether they went well is told over a group of its own, since a
/// stage that fails may leave messages behind.
class Doctor {
 public:
  Doctor(const DoctorOptions& options, World& world);

  World& world() { return world_; }
  Group& work() { return *work_; }
  double deadline() const { return options_.deadline_s; }
  const std::vector<RankDevices>& ranks() const { return ranks_; }
  std::vector<RankDevices>& ranks() { return ranks_; }

  /// Prints on rank 0, at once.
  void say(const std::string& text) const;
  /// Each rank's text, in rank order.
  std::vector<std::string> gather(const std::string& text);
  /// Longest over the ranks of the median of `repeats` measurements of f, in seconds.
  double time(int repeats, const std::function<void()>& f);
  /// Runs a stage on every rank; false where any rank threw.
  bool stage(const std::string& name, const std::function<void()>& f);

 private:
  DoctorOptions options_;
  World& world_;
  std::unique_ptr<Group> work_, verdict_;
  std::vector<RankDevices> ranks_;
};

/// Stage 3, on a device that is this rank's own.
void check_nccl(Doctor& doctor, Device device);

}  // namespace baton
