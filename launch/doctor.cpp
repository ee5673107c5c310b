#include "launch/doctor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "comm/nccl.h"
#include "runtime/cuda.h"
#include "runtime/log.h"
#include "runtime/memory.h"

extern char** environ;

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

/// Settings that change how ranks find and talk to each other. Open MPI's own addresses and ids are left out.
bool is_setting(const std::string& line) {
  static constexpr std::array kShown{
      "NCCL_", "CUDA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=",          "OMPI_MCA_",     "PMIX_MCA_",
      "UCX_",  "OMP_NUM_THREADS=",      "OMPI_COMM_WORLD_LOCAL_SIZE=", "SLURM_JOB_ID=", "SLURM_NTASKS="};
  static constexpr std::array kHidden{"OMPI_MCA_orte_", "OMPI_MCA_ess", "OMPI_MCA_shmem_RUNTIME",
                                      "OMPI_MCA_initial_wdir"};
  const auto starts = [&](const char* prefix) { return line.starts_with(prefix); };
  return std::any_of(kShown.begin(), kShown.end(), starts) && std::none_of(kHidden.begin(), kHidden.end(), starts);
}

std::string environment() {
  std::set<std::string> lines;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (is_setting(*entry)) lines.insert(*entry);
  std::string text;
  for (const std::string& line : lines) text += "  " + line + "\n";
  return text.empty() ? "  none\n" : text;
}

void show_environment(Doctor& doctor) {
  const std::vector<std::string> all = doctor.gather(environment());
  doctor.say("environment in force:\n" + all[0]);
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0]) doctor.say(fmt::format("environment of rank {}, which differs:\n{}", r, all[r]));
}

/// A small message once around all ranks.
void go_around(Group& group) {
  const int P = group.size(), next = (group.rank() + 1) % P, previous = (group.rank() + P - 1) % P;
  int64_t hops = 0;
  const Tensor x{&hops, Shape{1}, DType::kInt64, {}};
  if (group.rank() > 0) {
    group.recv(x, previous, Stream{})->wait();
    ++hops;
  }
  group.send(x, next, Stream{})->wait();
  if (group.rank() > 0) return;
  group.recv(x, previous, Stream{})->wait();
  CHECK(hops == P - 1, "a message around {} ranks was passed on {} times", P, hops);
}

void check_mpi(Doctor& doctor) {
  Group& work = doctor.work();
  doctor.ranks() = gather_devices(doctor.world(), work, /*look_for_devices=*/false);
  for (size_t r = 0; r < doctor.ranks().size(); ++r) {
    const RankDevices& rank = doctor.ranks()[r];
    doctor.say(
        fmt::format("  rank {}: host {}, local rank {} of {}\n", r, rank.host, rank.local_rank, rank.local_size));
  }
  const double barrier = doctor.time(20, [&] { work.barrier(); });
  doctor.say(fmt::format("  barrier: {:.1f} us\n", barrier * 1e6));
  if (work.size() == 1) return;
  const double around = doctor.time(20, [&] { go_around(work); });
  doctor.say(fmt::format("  8 bytes around the ring: {:.1f} us a hop\n", around * 1e6 / work.size()));
}

std::string describe_device(const Doctor& doctor, int rank, int index) {
  const cuda::DeviceMemory memory = cuda::device_memory(index);
  std::string text =
      fmt::format("  rank {}: GPU {} of host {}, {}, {} of {} free\n", rank, index, doctor.ranks()[rank].host,
                  cuda::device_name(index), format_bytes(memory.free), format_bytes(memory.total));
  for (int other = 0; other < cuda::num_devices(); ++other)
    if (other != index) text += fmt::format("    to GPU {} of this host: {}\n", other, link_between(index, other));
  return text;
}

Device check_devices(Doctor& doctor) {
  doctor.ranks() = gather_devices(doctor.world(), doctor.work(), /*look_for_devices=*/true);
  const int rank = doctor.world().rank();
  const Device device = choose_device("cuda", build_has_cuda(), doctor.ranks(), rank);
  cuda::set_device(device.index);
  std::string all;
  for (const std::string& text : doctor.gather(describe_device(doctor, rank, device.index))) all += text;
  doctor.say(all);
  return device;
}

}  // namespace

DoctorOptions parse_doctor_options(const Command& command) {
  DoctorOptions options;
  const std::string& text = command.flags.at("deadline");
  char* end = nullptr;
  options.deadline_s = std::strtod(text.c_str(), &end);
  CHECK_INPUT(!text.empty() && *end == '\0' && options.deadline_s > 0, "deadline = {}: it must be a number above 0",
              text);
  return options;
}

Doctor::Doctor(const DoctorOptions& options, World& world)
    : options_(options), world_(world), work_(world.group()), verdict_(world.group()) {
  work_->set_deadline(options.deadline_s);
  // A rank may first have to end a wait of its own.
  verdict_->set_deadline(2 * options.deadline_s + 10);
}

void Doctor::say(const std::string& text) const {
  if (world_.rank() != 0) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

std::vector<std::string> Doctor::gather(const std::string& text) {
  std::vector<std::string> all;
  for (int r = 0; r < work_->size(); ++r) all.push_back(broadcast(*work_, text, r));
  return all;
}

double Doctor::time(int repeats, const std::function<void()>& f) {
  f();  // the first call may connect
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    work_->barrier();
    const auto start = Clock::now();
    f();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return all_reduce(*work_, seconds[repeats / 2], ReduceOp::kMax);
}

bool Doctor::stage(const std::string& name, const std::function<void()>& f) {
  say(name + "\n");
  int64_t good = 1;
  try {
    f();
  } catch (const std::exception& e) {
    good = 0;
    std::fprintf(stderr, "baton doctor: rank %d on host %s, %s: %s\n", world_.rank(), host_name().c_str(), name.c_str(),
                 e.what());
  }
  // One by one, so that a rank that does not come back is named.
  const Tensor mine{&good, Shape{1}, DType::kInt64, {}};
  if (world_.rank() == 0) {
    for (int r = 1; r < world_.size(); ++r) {
      int64_t theirs = 0;
      verdict_->recv({&theirs, Shape{1}, DType::kInt64, {}}, r, Stream{})->wait();
      good &= theirs;
    }
  } else {
    verdict_->send(mine, 0, Stream{})->wait();
  }
  verdict_->broadcast(mine, 0, Stream{});
  say(good == 1 ? "  good\n" : "  FAILED\n");
  return good == 1;
}

ExitCode run_doctor(const DoctorOptions& options, World& world) {
  try {
    Doctor doctor(options, world);
    if (!doctor.stage("stage 1, MPI", [&] {
          show_environment(doctor);
          check_mpi(doctor);
        }))
      return ExitCode::kComparison;
    if (!build_has_cuda()) {
      doctor.say("stages 2 and 3, devices and NCCL: nothing to check, this build has no CUDA backend\n");
      return ExitCode::kDone;
    }
    Device device;
    if (!doctor.stage("stage 2, devices", [&] { device = check_devices(doctor); })) return ExitCode::kComparison;
    if (!doctor.stage("stage 3, NCCL", [&] { check_nccl(doctor, device); })) return ExitCode::kComparison;
    return ExitCode::kDone;
  } catch (const Error& e) {
    std::fprintf(stderr, "baton doctor: rank %d on host %s: a rank did not come back: %s\n", world.rank(),
                 host_name().c_str(), e.what());
    world.abort(static_cast<int>(ExitCode::kComparison));
  }
}

}  // namespace baton
