// StateDump: what a training step's operators held, at positions that are multiples of dump.grid, into runtime's dump.
//
// The sequences are those of the first micro-batch of dp rank 0, samples [state.samples, + B): with one sp_group, or
// with train.micro_batch set, the same at any number of ranks. Weights are those before the step. State gradients are
// of the sum of losses divided by train.batch * data.seq_len. Gates of a fixed kind are its log decay [B, num_grid, H],
// scalar [.., H], vector [.., H, K], bilinear gate [.., H, K] and gate_v [.., H, V]; kind none has none.
// Row w P + r of /sp is the state that entered shard r of window w.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/mixer.h"
#include "runtime/dump.h"

namespace baton {

class StateDump {
 public:
  /// Reads [dump], data.seq_len and train.window. Only ranks of dp rank 0 write a part.
  StateDump(const Config& config, const Topology& topology, const std::string& dumps_dir, int64_t step);

  /// For the step's first micro-batch; empty where this rank writes nothing. Must not outlive the dump.
  Probe probe();

  /// Collective over the world, after the step: world rank 0 merges. Returns the path on every rank.
  std::string commit(Group& world);

 private:
  void see(const Probed& p);
  /// h [B, H, K, V] is scratch on the operator's device.
  void add_state(const Probed& p, int64_t position, const Tensor& h);
  /// gk, gv are the operator's, in host memory.
  void add_gates(const Probed& p, const Tensor& gk, const Tensor& gv, int64_t position);
  /// `block` [B, ...], in host memory, becomes point `position` of dataset layer.N/`what`.
  void add(const Probed& p, const std::string& what, int64_t position, const Tensor& block);

  DumpInfo info_;
  Topology topology_;
  std::string dir_;
  int64_t window_ = 0;
  bool state_ = false, dstate_ = false, gate_ = false;
  std::vector<int64_t> layers_;
  std::unique_ptr<DumpPart> part_;
};

}  // namespace baton
