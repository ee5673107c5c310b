// Model: embedding, layers, final norm and head. Forward and backward take and return the states at the shard's
// borders, so that ranks, windows, evaluation and sampling all use this one path.
#pragma once

#include <memory>
#include <vector>

#include "model/gradient_reduction.h"
#include "model/mixer.h"

namespace baton {

/// One tensor [B, H, K, V] a layer: states at a border of the shard, or their gradients.
using States = std::vector<Tensor>;

class Model {
 public:
  /// Lays everything out in the arena: run it on a measuring arena first, then on one of that size. B sequences of at
  /// most T tokens at once. Without `training` layers share one set of activations and there are no gradients. dtype
  /// bfloat16 is mixed precision (Precision).
  Model(const ModelConfig& config, DType dtype, int64_t B, int64_t T, bool training, Arena& arena);

  const ParameterTable& table() const { return *table_; }
  const ParameterSet& parameters() const { return parameters_; }
  /// To be called when the weights have changed: renews the copies that matrix products read.
  void refresh_operands(const Stream& stream) const;
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t capacity_tokens() const { return max_T_; }

  GateKind gate() const { return layers_.front().dims.gate; }
  /// Numbers of the largest layer's message in a scan that sends carries.
  int64_t largest_carry() const;
  int64_t carry_rows() const;  // and its rows, as ShardCarry has them

  /// A set of states from the arena.
  States make_states(Arena& arena, const std::string& group) const;

  /// Hidden states of the shard. With a scan, entering[l] is received on every rank but the first, where it is given;
  /// without, it is given on every rank (windows run again from kept states). leaving[l] is filled; on a single rank it
  /// may be undefined where nobody wants it, and so may dstates_out[l] below.
  void forward(const Batch& batch, StateScan* scan, const States& entering, const States& leaving,
               const Stream& stream);

  /// After forward: sum of the cross-entropies of this shard's counted tokens (double). With gradients, the head's
  /// backward runs too, for the loss gradient_scale * sum. Per-token losses: losses().
  double head_loss(const Batch& batch, double gradient_scale, bool with_gradient, const Stream& stream);
  /// Host double [B T], of the last head_loss.
  Tensor losses() const { return host_losses().rows(0, num_rows_); }
  /// Logits [count, vocab], in the accumulating dtype, of token rows [first, first + count) of the last forward.
  void logits(int64_t first, int64_t count, const Tensor& out, const Stream& stream) const;

  /// After forward and head_loss with gradients. entering: forward's. dstates_in[l] is the gradient of the state that
  /// left the shard (given on the last rank, received elsewhere); dstates_out[l] becomes that of the state that
  /// entered. Parameter gradients accumulate. reduction, where given, is told of each layer whose gradients are final.
  void backward(const Batch& batch, StateScan& scan, const States& entering, const States& dstates_in,
                const States& dstates_out, GradientReduction* reduction, const Probe& probe, const Stream& stream);

 private:
  struct Layer {
    LayerDims dims;
    int64_t first_element;  // of its parameters in the flat tensors
    Norm mixer_norm, ffn_norm;
    std::unique_ptr<Mixer> mixer;
    FeedForward ffn;
    LayerActivations capacity, act;
  };

  const Tensor& host_losses() const { return host_losses_.tensor.defined() ? host_losses_.tensor : losses_; }

  ModelConfig config_;
  Precision precision_;
  int64_t max_B_, max_T_, num_rows_ = 0;
  std::unique_ptr<ParameterTable> table_;
  ParameterSet parameters_;
  Parameter embedding_, head_;
  double embedding_scale_ = 1;
  std::vector<Layer> layers_;
  std::unique_ptr<Norm> final_norm_;
  Scratch scratch_;
  Tensor x_final_, y_final_, stats_final_, losses_;  // [N, D], [N, D], [N, 2], [N]
  Tensor logits_, dlogits_;                          // [kHeadRows, vocab]; dlogits_ in mixed precision only
  OwnedTensor host_losses_;                          // where losses_ is on a device
};

}  // namespace baton
