// SequencePass: B whole sequences through the model, window by window, forward and backward.
//
// A window is the tokens that all ranks of the sp_group hold at one time; shard r of each window is this rank's. The
// last rank's state enters the first rank's shard of the next window.
//   exact      forward over all windows but the last keeps only the states that enter each shard; then windows are
//   taken
//              last to first, each run forward again from its kept states (no message) and backward, the state's
//              gradient flowing on. Gradients are those of the whole sequence, activations are one window's.
//   truncated  the state flows on, its gradient does not; no extra forward.
#pragma once

#include <functional>

#include "comm/topology.h"
#include "model/model.h"

namespace baton {

/// Fills this rank's batch, in host memory, for tokens [range) of its B sequences.
using LoadTokens = std::function<void(Range range, const Batch& batch)>;

/// Called between windows; true abandons the pass. Must agree on all ranks.
using ShouldAbandon = std::function<bool()>;

/// The windows of a sequence and this rank's shard of each.
struct WindowPlan {
  int64_t T_total = 0, window = 0;
  int64_t sp_size = 1, sp_rank = 0;

  int64_t num_windows() const { return (T_total + window - 1) / window; }
  Range shard(int64_t window_idx) const;
  /// The largest shard of any rank: what the model must hold.
  static int64_t capacity(int64_t T_total, int64_t window, int64_t sp_size);
};

/// The detached state of sequences that continue others: what enters them, and what leaves them once they are read,
/// both on the first rank and of no interest on the others. Not the same memory.
struct Continuation {
  States entering, leaving;
};

class SequencePass {
 public:
  /// Lays out states and the batch. max_windows: windows of the longest sequence to train on in exact mode (0: no
  /// training). early_send: see decays_forget.
  SequencePass(Model& model, Group& sp_group, ScanStrategy strategy, int64_t B, int64_t T, int64_t max_windows,
               Arena& arena, double early_send = 0);

  struct Result {
    double loss_sum = 0;
    int64_t counted = 0;  // tokens with a target on this rank
    bool abandoned = false;
  };

  /// Forward and backward: parameter gradients of gradient_scale * (sum of losses) accumulate. reduction, where given,
  /// is begun under the last window's backward, which nothing abandons. Without a continuation sequences start from
  /// zero.
  Result train(const WindowPlan& plan, bool exact, double gradient_scale, const LoadTokens& load,
               const Continuation* continuation, const ShouldAbandon& should_abandon, GradientReduction* reduction,
               const Probe& probe, const Stream& stream);

  /// Forward only. on_window, where given, sees each window's range, its batch and its per-token losses [B, T], on the
  /// host.
  using OnWindow = std::function<void(Range range, const Batch& batch, const Tensor& losses)>;
  Result evaluate(const WindowPlan& plan, const LoadTokens& load, const ShouldAbandon& should_abandon,
                  const OnWindow& on_window, const Stream& stream);

  const StateScan& scan() const { return scan_; }
  /// States that entered this rank's shards in the last pass, by window; evaluation and truncated mode use 0 and 1 in
  /// turn.
  const std::vector<States>& entering() const { return entering_; }

 private:
  /// Loads on the host, then copies to the model's device; device_batch_ and host_batch_ are cut to the shard.
  void load_window(const WindowPlan& plan, int64_t w, const LoadTokens& load, const Stream& stream);
  void enter_window(int64_t w, const Continuation* continuation, const States& states, const Stream& stream);
  /// `states`, or undefined ones where they may be: on a single rank, where nobody wants what is behind.
  const States& wanted(bool really, const States& states) const {
    return really || sp_group_.size() > 1 ? states : unwanted_;
  }
  /// After the forward pass of a window: behind the last one the state leaves the sequence.
  void leave_window(bool last, const Continuation* continuation, const Stream& stream);
  /// w: of entering_. first: no gradient flows on to a window before.
  void loss_and_backward(int64_t w, bool first, double gradient_scale, GradientReduction* reduction, const Probe& probe,
                         Result& result, const Stream& stream);

  Model& model_;
  Group& sp_group_;
  StateScan scan_;
  std::vector<OwnedTensor> host_capacity_;  // where the model is on a device
  OwnedTensor host_shard_tokens_;
  Batch device_capacity_, device_batch_, host_batch_;
  std::vector<States> entering_;  // by window
  States leaving_, dentering_, dleaving_;
  States unwanted_;  // undefined
};

}  // namespace baton
