// Checkpoints: step-00001000/{index.h5, part-00003.h5, manifest.json}. Every world rank writes its rows of each
// replicated tensor, so disk does not grow with ranks; index.h5 shows each tensor whole to other programs, as virtual
// datasets, and the run's position as attributes of /state, /data and /rng. Any rank count loads any one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tensor.h"

namespace baton {

struct NamedTensor {
  std::string name;  // "param/model.norm.weight", "adam_m/..."
  Tensor tensor;     // host memory
};

/// The position of a run: what besides tensors makes the next steps the same bits.
struct RunState {
  int64_t step = 0;     // optimizer steps done
  int64_t samples = 0;  // global samples consumed: the position in the data
  int64_t tokens = 0;   // tokens counted in losses
  int64_t seed = 0;
};

/// What a part's writer tells the committing rank.
struct PartInfo {
  int64_t bytes = 0;
  int64_t checksum = 0;  // CRC-32 of the file
};

/// Name of the directory of a step below checkpoints/: "step-00001000".
std::string checkpoint_name(int64_t step);

/// Stage 1, every rank: writes rows of part `part` of `num_parts` into DIR.tmp/part-%05d.h5, flushed. The directory is
/// made by whoever comes first; what a killed save left in it is replaced. Stage 2, one rank, after all: index,
/// manifest (last, flushed), and the rename to DIR, in place of a DIR that exists. Both throw where the disk fails.
PartInfo write_part(const std::string& dir, const std::vector<NamedTensor>& tensors, int part, int num_parts);
void commit_checkpoint(const std::string& dir, const std::vector<NamedTensor>& tensors, const RunState& state,
                       const std::string& config_ini, const std::vector<PartInfo>& parts);

/// Paths of the committed checkpoints below `checkpoints_dir`, oldest first; none where there is no such directory.
/// Leftovers of a killed save are not listed, damaged checkpoints are.
std::vector<std::string> list_checkpoints(const std::string& checkpoints_dir);
/// Moves the checkpoints of steps from `first_step` on to a new directory abandoned-N below checkpoints_dir, where they
/// are found by path alone. Returns it; empty where there are none.
std::string set_aside_checkpoints(const std::string& checkpoints_dir, int64_t first_step);
/// Removes all but the newest `keep` (0: all are kept), and the leftovers of steps up to the newest. One rank calls it,
/// also while others begin the next save.
void prune_checkpoints(const std::string& checkpoints_dir, int64_t keep);

/// A committed checkpoint, opened. The constructor checks the manifest, that every part exists, and its size and
/// checksum. What is wrong is an input error, "DIR: part-00001.h5 is damaged (...); the previous checkpoint is DIR",
/// whose last part names the newest good one before it, if any. With checksums the whole checkpoint is read: one rank
/// does it.
class CheckpointReader {
 public:
  explicit CheckpointReader(const std::string& dir, bool verify_checksums = true);
  const RunState& state() const { return state_; }
  const std::string& config_ini() const { return config_ini_; }
  /// Reads tensors by name from the parts, converted to their dtype; a missing one or another shape is an input error
  /// that names it.
  void read(const std::vector<NamedTensor>& tensors) const;
  bool has(const std::string& name) const;

 private:
  std::string dir_;
  RunState state_;
  std::string config_ini_;
  int num_parts_ = 0;
  std::map<std::string, Shape> shapes_;
};

}  // namespace baton
