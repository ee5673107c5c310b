#include "runtime/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/files.h"
#include "runtime/hdf5_file.h"
#include "runtime/manifest.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "index.h5";
constexpr const char* kManifest = "manifest.json";

std::string unfinished(const std::string& dir) { return dir + ".tmp"; }

PartInfo info_of(const fs::path& file) { return {static_cast<int64_t>(fs::file_size(file)), checksum_of_file(file)}; }

/// Files of a killed save of this step, by more ranks perhaps, must not end up inside the checkpoint.
void remove_strangers(const fs::path& dir, const std::vector<Manifest::File>& files) {
  std::set<std::string> known;
  for (const Manifest::File& file : files) known.insert(file.name);
  for (const fs::path& path : std::vector<fs::path>(fs::directory_iterator(dir), {}))
    if (!known.contains(path.filename())) fs::remove_all(path);
}

void write_index(const fs::path& file, const std::vector<NamedTensor>& tensors, const RunState& state, int num_parts) {
  Hdf5File index(file, Hdf5File::Mode::kCreate);
  for (const auto& [name, x] : tensors) {
    std::vector<Hdf5File::Part> parts;
    for (int p = 0; p < num_parts; ++p) {
      const int64_t first = first_row_of(x.dim(0), p, num_parts);
      parts.push_back({part_name(p), first, first_row_of(x.dim(0), p + 1, num_parts) - first});
    }
    index.write_virtual("/" + name, x.shape, x.dtype, parts);
  }
  index.write_int("/state", "step", state.step);
  index.write_int("/data", "samples", state.samples);
  index.write_int("/data", "tokens", state.tokens);
  index.write_int("/rng", "seed", state.seed);
  index.close();
}

std::string without_slash(std::string dir) {
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  return dir;
}

/// Renamed first, so that a removal that is killed leaves no half checkpoint under a committed name.
void remove_checkpoint(const std::string& dir) {
  const std::string old = dir + ".old";
  fs::remove_all(old);
  fs::rename(dir, old);
  fs::remove_all(old);
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:08d}", step); }

int64_t step_of(const std::string& dir) {
  const std::string name = fs::path(without_slash(dir)).filename();
  const std::string prefix = "step-";
  if (!name.starts_with(prefix) || name.size() < prefix.size() + 8 || name.size() > prefix.size() + 18) return -1;
  const std::string digits = name.substr(prefix.size());
  return digits.find_first_not_of("0123456789") == std::string::npos ? std::stoll(digits) : -1;
}

PartInfo write_part(const std::string& dir, const std::vector<NamedTensor>& tensors, int part, int num_parts) {
  CHECK(part >= 0 && part < num_parts, "part {} of a checkpoint of {} parts", part, num_parts);
  const fs::path tmp = unfinished(without_slash(dir));
  fs::create_directories(tmp);
  const fs::path path = tmp / part_name(part);
  Hdf5File file(path, Hdf5File::Mode::kCreate);
  for (const auto& [name, x] : tensors) {
    CHECK(x.defined(), "tensor {} has no shape and cannot be saved", name);
    const int64_t first = first_row_of(x.dim(0), part, num_parts);
    file.write("/" + name, x.rows(first, first_row_of(x.dim(0), part + 1, num_parts) - first));
  }
  file.close();
  flush_to_disk(tmp);
  return info_of(path);
}

void commit_checkpoint(const std::string& dir, const std::vector<NamedTensor>& tensors, const RunState& state,
                       const std::string& config_ini, const std::vector<PartInfo>& parts) {
  const std::string final_dir = without_slash(dir);
  const fs::path tmp = unfinished(final_dir);
  Manifest manifest{state, static_cast<int>(parts.size()), {}, {}, config_ini};
  for (int p = 0; p < manifest.num_parts; ++p) {
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(tmp / part_name(p), error));
    CHECK(!error && bytes == parts[p].bytes, "{} has {} bytes after its rank wrote {}", (tmp / part_name(p)).string(),
          error ? 0 : bytes, parts[p].bytes);
    manifest.files.push_back({part_name(p), parts[p]});
  }
  remove_strangers(tmp, manifest.files);
  write_index(tmp / kIndex, tensors, state, manifest.num_parts);
  manifest.files.push_back({kIndex, info_of(tmp / kIndex)});
  for (const auto& [name, x] : tensors) manifest.tensors[name] = {x.shape, x.dtype};
  flush_to_disk(tmp);
  write_file(tmp / kManifest, manifest.to_text());
  flush_to_disk(tmp);
  replace_directory(tmp, final_dir);
}

std::vector<std::string> list_checkpoints(const std::string& checkpoints_dir) {
  std::vector<std::string> dirs;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints_dir, error))
    if (step_of(entry.path()) >= 0 && entry.is_directory(error)) dirs.push_back(entry.path());
  std::ranges::sort(dirs, {}, step_of);
  return dirs;
}

std::string set_aside_checkpoints(const std::string& checkpoints_dir, int64_t first_step) {
  std::vector<std::string> dirs = list_checkpoints(checkpoints_dir);
  std::erase_if(dirs, [&](const std::string& dir) { return step_of(dir) < first_step; });
  if (dirs.empty()) return "";
  fs::path aside;
  for (int n = 1; aside.empty() || fs::exists(aside); ++n)
    aside = fs::path(checkpoints_dir) / fmt::format("abandoned-{}", n);
  fs::create_directory(aside);
  for (const std::string& dir : dirs) fs::rename(dir, aside / fs::path(dir).filename());
  flush_to_disk(aside);
  flush_to_disk(checkpoints_dir);
  return aside;
}

void prune_checkpoints(const std::string& checkpoints_dir, int64_t keep) {
  const std::vector<std::string> dirs = list_checkpoints(checkpoints_dir);
  if (dirs.empty()) return;
  const int64_t newest = step_of(dirs.back());
  const auto count = static_cast<int64_t>(dirs.size());
  for (int64_t i = 0; keep > 0 && i < count - keep; ++i) remove_checkpoint(dirs[static_cast<size_t>(i)]);
  for (const fs::path& path : std::vector<fs::path>(fs::directory_iterator(checkpoints_dir), {})) {
    const std::string extension = path.extension();
    const int64_t step = step_of(path.stem());
    if ((extension == ".tmp" || extension == ".old") && step >= 0 && step <= newest) fs::remove_all(path);
  }
}

}  // namespace baton
