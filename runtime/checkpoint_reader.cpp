#include <algorithm>
#include <filesystem>

#include "runtime/hdf5_file.h"
#include "runtime/manifest.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

/// "; the previous checkpoint is DIR": the newest good one before `dir`, or nothing.
std::string offer_previous(const std::string& dir) {
  const int64_t step = step_of(dir);
  if (step < 0) return "";
  const fs::path here = dir.ends_with('/') ? fs::path(dir).parent_path() : fs::path(dir);
  const fs::path parent = here.parent_path();
  std::vector<std::string> others = list_checkpoints(parent.empty() ? "." : parent.string());
  std::ranges::reverse(others);
  for (const std::string& other : others) {
    if (step_of(other) >= step) continue;
    try {
      verify_checkpoint(other, true);
      return "; the previous checkpoint is " + other;
    } catch (const Error&) {
      // Damaged too: look further back.
    }
  }
  return "; there is no good checkpoint before it";
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& dir, bool verify_checksums) : dir_(dir) {
  try {
    const Manifest manifest = verify_checkpoint(dir, verify_checksums);
    state_ = manifest.state;
    config_ini_ = manifest.config_ini;
    num_parts_ = manifest.num_parts;
    for (const auto& [name, entry] : manifest.tensors) shapes_[name] = entry.shape;
  } catch (const Error& error) {
    throw Error(ExitCode::kInput, fmt::format("{}: {}{}", dir, error.what(), offer_previous(dir)));
  }
}

bool CheckpointReader::has(const std::string& name) const { return shapes_.contains(name); }

void CheckpointReader::read(const std::vector<NamedTensor>& tensors) const {
  for (const auto& [name, x] : tensors) {
    CHECK_INPUT(has(name), "{} has no tensor {}", dir_, name);
    const Shape& shape = shapes_.at(name);
    CHECK_INPUT(shape == x.shape, "{}: tensor {} has shape {}, the model has {}", dir_, name, shape.str(),
                x.shape.str());
  }
  for (int p = 0; p < num_parts_; ++p) {
    const Hdf5File file(fs::path(dir_) / part_name(p), Hdf5File::Mode::kRead);
    for (const auto& [name, x] : tensors) {
      const int64_t first = first_row_of(x.dim(0), p, num_parts_);
      file.read("/" + name, x.rows(first, first_row_of(x.dim(0), p + 1, num_parts_) - first));
    }
  }
}

}  // namespace baton
