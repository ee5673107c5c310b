#include "launch/job.h"

#include <omp.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "launch/run_directory.h"
#include "launch/scan_choice.h"
#include "runtime/log.h"

namespace baton {

namespace {

/// Ranks that the configuration is for: a sample is one rank's work, a plan may be of more ranks than it runs on.
int planned_ranks(const Command& command, int world_size) {
  if (command.name == "sample") return 1;
  const int64_t sp = command.config.parallel.sp;
  const bool larger = command.name == "plan" && sp > world_size && sp <= std::numeric_limits<int32_t>::max();
  return larger ? static_cast<int>(sp) : world_size;
}

bool is_kept_state(const NamedTensor& x) { return x.name.starts_with("state/"); }

}  // namespace

Job::Job(const Command& command, World& world_ranks, Group& world) : config(command.config), world(world) {
  const bool sampling = command.name == "sample";
  const bool evaluates = command.name == "eval";  // which needs no training data
  if (sampling) config.parallel.sp = 1;
  together(world, [&] {
    const int num_ranks = planned_ranks(command, world.size());
    validate(config, num_ranks);
    ranks.topology =
        Topology::make(std::max(num_ranks, world.size()), world.rank(), static_cast<int>(config.parallel.sp));
    if (sampling) return;  // the checkpoint knows its vocabulary
    if (!config.data.train.empty() && !evaluates) train.emplace(config.data, "data.train", config.data.train);
    if (!config.data.val.empty()) val.emplace(config.data, "data.val", config.data.val);
    for (const Dataset* data : {train ? &*train : nullptr, val ? &*val : nullptr}) {
      if (data == nullptr) continue;
      if (config.model.vocab == 0) config.model.vocab = data->vocab();
      const bool is_val = val && data == &*val;
      CHECK_INPUT(config.model.vocab >= data->vocab(),
                  "model.vocab = {}: must be at least {}, the token ids of {} = {}", config.model.vocab, data->vocab(),
                  is_val ? "data.val" : "data.train", is_val ? config.data.val : config.data.train);
    }
  });
  if (config.run.threads > 0) omp_set_num_threads(static_cast<int>(config.run.threads));
  const bool planning = command.name == "plan";  // allocates nothing, so it needs no device
  world.set_deadline(config.parallel.deadline);
  compute = std::make_unique<Compute>(planning ? "cpu" : config.run.device, world_ranks, world,
                                      ranks.topology.dp_rank(), config.parallel.deadline);
  together(world, [&] {
    const bool on_cpu = compute->stream.device.type == DeviceType::kCpu;
    CHECK_INPUT(planning || !on_cpu || config.run.dtype != "bfloat16",
                "run.dtype = bfloat16: the CPU computes in float32 or float64; give --run.dtype float32");
    CHECK_INPUT(on_cpu || config.run.dtype != "float64", "run.dtype = float64: a GPU computes in bfloat16 or float32");
  });
  ranks.world = compute->world.get();
  ranks.sp = compute->sp.get();
  ranks.stream = compute->stream;
  if (config.parallel.scan == "auto") config.parallel.scan = to_string(choose_scan(config, ranks, planning));
}

std::string newest_checkpoint(const Config& config) {
  const std::vector<std::string> all = list_checkpoints(checkpoints_dir(config));
  return all.empty() ? "" : all.back();
}

std::string checkpoint_to_resume(const Config& config) {
  const std::string& resume = config.checkpoint.resume;
  if (resume.empty() || (resume != "auto" && resume != "latest")) return resume;
  const std::string newest = newest_checkpoint(config);
  CHECK_INPUT(resume == "auto" || !newest.empty(), "checkpoint.resume = latest: {} holds no checkpoint",
              checkpoints_dir(config));
  return newest;
}

std::string checkpoint_to_read(const Config& config) {
  if (!config.checkpoint.load.empty()) return config.checkpoint.load;
  const std::string resume = checkpoint_to_resume(config);
  if (!resume.empty()) return resume;
  const std::string newest = newest_checkpoint(config);
  CHECK_INPUT(!newest.empty(), "run.dir = {}: holds no checkpoint; give one with --checkpoint.load", config.run.dir);
  return newest;
}

RunState load_checkpoint(const std::string& key, const std::string& dir, const Job& job,
                         const std::vector<NamedTensor>& tensors) {
  RunState state;
  const bool going_on = key == "checkpoint.resume";
  const bool with_states = std::ranges::any_of(tensors, is_kept_state);
  together(job.world, [&] {
    try {
      // Checksums cover all parts: one rank reads them all, the others only their rows' parts.
      const CheckpointReader reader(dir, job.root());
      state = reader.state();
      const Config saved = config_from_ini(reader.config_ini(), dir);
      for (const std::string& change : differences(saved, job.config)) {
        CHECK_INPUT(!change.starts_with("model."), "{}: its model is another one ({}); [model] must match", dir,
                    change);
        CHECK_INPUT(!with_states || !change.starts_with("train.batch:"),
                    "{}: keeps the states of another batch ({}); train.batch must match", dir, change);
        CHECK_INPUT(!with_states || !going_on || !change.starts_with("data.seq_len:"),
                    "{}: counts steps of another length ({}); data.seq_len must match where data.order = stream", dir,
                    change);
        if (job.root() && going_on) fmt::print("changed since the checkpoint: {}\n", change);
      }
      for (const NamedTensor& x : tensors)
        CHECK_INPUT(!is_kept_state(x) || reader.has(x.name),
                    "{}: keeps no {}; it must be of a run with data.order = stream", dir, x.name);
      reader.read(tensors);
    } catch (const Error& e) {
      if (e.code() != ExitCode::kInput) throw;
      throw Error(ExitCode::kInput, fmt::format("{} = {}", key, e.what()));
    }
  });
  return state;
}

std::string parameter_table(const ParameterTable& table) {
  std::string text = fmt::format("{:<58}{:<16}{:>12}\n", "parameter", "shape", "elements");
  for (const ParameterRow& row : table.rows())
    text += fmt::format("  {:<56}{:<16}{:>12}\n", row.name, row.shape.str(), row.shape.numel());
  return text + fmt::format("  {:<72}{:>12}\n", "total", table.num_parameters());
}

}  // namespace baton
