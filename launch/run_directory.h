// The run directory: config.cfg, metrics.jsonl, tb/, checkpoints/, dumps/, loss.png.
#pragma once

#include <string>

#include "comm/group.h"
#include "runtime/config.h"

namespace baton {

/// Collective. Rank 0 makes run.dir and writes the resolved configuration; every rank must then see rank 0's marker
/// file, so that no rank writes its part of a checkpoint to a disk of its own. Input errors name run.dir and the path.
void prepare_run_directory(const Config& config, Group& world);

std::string checkpoints_dir(const Config& config);

}  // namespace baton
