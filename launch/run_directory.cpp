#include "launch/run_directory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace baton {
namespace fs = std::filesystem;

void prepare_run_directory(const Config& config, Group& world) {
  const fs::path dir = config.run.dir;
  std::string marker;
  together(world, [&] {
    if (world.rank() != 0) return;
    std::error_code failed;
    fs::create_directories(dir / "checkpoints", failed);
    if (!failed) fs::create_directories(dir / "dumps", failed);
    CHECK_INPUT(!failed, "run.dir = {}: cannot be created ({})", config.run.dir, failed.message());
    std::ofstream(dir / "config.cfg") << to_ini(config);
    marker = fmt::format(".seen-by-all-{}", ::getpid());
    std::ofstream file(dir / marker);
    CHECK_INPUT(file.good(), "run.dir = {}: cannot be written to", config.run.dir);
  });
  marker = broadcast(world, marker, 0);
  together(world, [&] {
    CHECK_INPUT(fs::exists(dir / marker),
                "run.dir = {}: rank {} does not see the directory of rank 0; it must be on a disk that all ranks share",
                config.run.dir, world.rank());
  });
  world.barrier();
  if (world.rank() == 0) fs::remove(dir / marker);
}

std::string checkpoints_dir(const Config& config) { return (fs::path(config.run.dir) / "checkpoints").string(); }

}  // namespace baton
