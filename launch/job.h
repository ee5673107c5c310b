// What every command that reads a configuration needs: ranks in their groups, threads, data, the resolved
// configuration.
#pragma once

#include <memory>
#include <optional>

#include "comm/world.h"
#include "launch/compute.h"
#include "launch/options.h"
#include "model/trainer.h"
#include "runtime/dataset.h"

namespace baton {

struct Job {
  /// Collective. Validates on all ranks before anything is allocated. Opens data.train and data.val where they are set
  /// (not for `sample`). `sample` takes any parallel.sp, `plan` also one above the number of ranks.
  Job(const Command& command, World& world_ranks, Group& world);

  bool root() const { return world.rank() == 0; }

  Config config;  // vocabulary filled in
  Group& world;
  std::unique_ptr<Compute> compute;
  Ranks ranks;
  std::optional<Dataset> train, val;
};

/// Collective. Reads weights, moments, kept states or all of them from a checkpoint directory; returns where its run
/// was. [model] must match, and with kept states train.batch.
RunState load_checkpoint(const std::string& key, const std::string& dir, const Job& job,
                         const std::vector<NamedTensor>& tensors);

/// The newest committed checkpoint of run.dir, empty if none.
std::string newest_checkpoint(const Config& config);

/// The directory that checkpoint.load, else checkpoint.resume, else run.dir names: for eval and sample.
std::string checkpoint_to_read(const Config& config);

/// "latest" and "auto" resolved against run.dir: empty where there is nothing to resume from.
std::string checkpoint_to_resume(const Config& config);

/// The commands; each is collective over the world.
ExitCode run_train(Job& job);
ExitCode run_eval(Job& job);
ExitCode run_sample(Job& job);
ExitCode run_plan(Job& job);

/// The parameter table as text.
std::string parameter_table(const ParameterTable& table);

}  // namespace baton
