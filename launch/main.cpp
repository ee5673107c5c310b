// baton: trains linear-attention language models over any number of ranks.
//
//   baton train --config configs/gla-tiny.cfg
//   mpirun -np 4 baton replay tests/data/operator.h5
//   baton --help
#include <omp.h>

#include <cstdio>
#include <optional>

#include "comm/device.h"
#include "launch/bench.h"
#include "launch/compute.h"
#include "launch/doctor.h"
#include "launch/job.h"
#include "launch/options.h"
#include "launch/replay.h"
#include "runtime/log.h"
#include "runtime/stop_request.h"

namespace baton {
namespace {

ExitCode run_command(const Command& command, World& world, Group& group) {
  omp_set_num_threads(world.default_threads());
  if (command.name == "replay") {
    ReplayOptions options;
    together(group, [&] { options = parse_replay_options(command); });
    const Compute compute(options.device, world, group, 0, group.deadline());
    together(group, [&] {
      const DType other = compute.stream.device.type == DeviceType::kCpu ? DType::kBFloat16 : DType::kFloat64;
      CHECK_INPUT(options.dtype != other,
                  "--dtype = {}: the CPU computes in float32 or float64, a GPU in float32 or bfloat16",
                  to_string(other));
    });
    return replay(options, *compute.sp, compute.stream);
  }
  if (command.name == "bench") {
    BenchOptions options;
    const Device device = select_device(command.flags.at("device"), world, group);
    together(group, [&] { options = parse_bench_options(command, device); });
    if (options.threads > 0) omp_set_num_threads(static_cast<int>(options.threads));
    if (!options.comm) return run_bench(options, group);
    together(group, [&] { CHECK_INPUT(group.size() > 1, "baton bench comm: must run on two ranks or more"); });
    const Compute compute(command.flags.at("device"), world, group, 0, group.deadline());
    return run_comm_bench(options, {Topology::make(world.size(), world.rank(), 0), compute.world.get(),
                                    compute.sp.get(), compute.stream});
  }
  if (command.name == "doctor") {
    DoctorOptions options;
    together(group, [&] { options = parse_doctor_options(command); });
    return run_doctor(options, world);
  }
  Job job(command, world, group);
  if (command.name == "train") return run_train(job);
  if (command.name == "eval") return run_eval(job);
  if (command.name == "sample") return run_sample(job);
  return run_plan(job);
}

/// Rank 0 reads a file and gives its text to all.
std::string read_and_broadcast(const std::string& path, Group& group) {
  std::string text;
  together(group, [&] {
    if (group.rank() == 0) text = read_whole_file("--config", path);
  });
  return broadcast(group, text, 0);
}

ExitCode run(const std::vector<std::string>& args, World& world, Group& group) {
  Command command;
  together(group, [&] {
    command = parse_command_line(args, [&](const std::string& path) { return read_and_broadcast(path, group); });
  });
  if (command.help) {
    if (group.rank() == 0) std::fputs(help_text(command.name).c_str(), stdout);
    return ExitCode::kDone;
  }
  return run_command(command, world, group);
}

/// Where all ranks agree on the error, rank 0 says it and all return its code; where they cannot, the job is aborted.
ExitCode run_guarded(const std::vector<std::string>& args, World& world, Group& group) {
  try {
    return run(args, world, group);
  } catch (const Error& e) {
    if (e.agreed()) {
      if (group.rank() == 0) std::fprintf(stderr, "baton: %s\n", e.describe().c_str());
      return e.code();
    }
    log_line(world.rank(), -1, e.describe());
    world.abort(static_cast<int>(e.code()));
  } catch (const std::exception& e) {
    log_line(world.rank(), -1, e.what());
    world.abort(static_cast<int>(ExitCode::kTransport));
  }
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::install_stop_handlers();
  baton::World world(&argc, &argv);
  const auto group = world.group();
  return static_cast<int>(baton::run_guarded({argv + 1, argv + argc}, world, *group));
}
