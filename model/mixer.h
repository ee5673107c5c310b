// Mixers: where a layer's tokens meet. What GLA and Lightning share stands in Mixer: the carry, the hand-over, the
// output, its norm and gate. Each family only says how q, k, v and the gates are projected.
#pragma once

#include <functional>
#include <memory>

#include "comm/topology.h"
#include "model/blocks.h"
#include "model/carry.h"

namespace baton {

/// One shard of a micro-batch. Host tensors or device tensors as the model's; starts may be undefined.
struct Batch {
  Tensor tokens, targets;  // int32 [B, T]
  Tensor starts;           // uint8 [B, T]
  Tensor positions;        // int64 [B, T], in the document
  Tensor shard_tokens;     // int64 [P, B], FixedDecays::tokens; only where the scan's messages hold no decays
  bool forgets = false;    // a document starts in every row
  double early_send = 0;   // see decays_forget
  Range range;             // of the shard in its sequence; for probes alone
};

/// How the state crosses this shard's borders in one pass: entering [B, H, K, V] and leaving, owned by the caller.
/// With a scan, entering is received (the first rank's is given); without one it is given on every rank. Where nothing
/// is handed on, leaving may be undefined: nobody wants it.
struct StatePass {
  StateScan* scan = nullptr;
  Tensor entering, leaving;
  /// Nothing is handed on.
  bool alone() const { return scan == nullptr || scan->num_ranks() == 1; }
};

/// A layer's operator when states and their gradients are both known, at the end of its backward.
struct Probed {
  int64_t layer = 0;
  Range range;  // of the shard in its sequence
  const AttentionInputs& in;
  const AttentionChunks &chunks, &dchunks;
  const Tensor& dout;
  const Stream& stream;  // all of it is there once what is on the stream has run
};
using Probe = std::function<void(const Probed&)>;

class Mixer {
 public:
  virtual ~Mixer() = default;
  static std::unique_ptr<Mixer> make(const ModelConfig& config, int64_t layer, const ParameterSet& p, Arena& arena,
                                     Precision precision);

  /// a.y1 -> adds the mixer's output to a.x_mid.
  void forward(const LayerActivations& a, const Scratch& s, const Batch& batch, const StatePass& pass,
               const Stream& stream) const;

  /// s.dres is the gradient of the output; s.dy becomes that of y1. h0 is the state that entered in forward; dpass
  /// carries the state's gradient from the next rank to the one before.
  void backward(const LayerActivations& a, const Scratch& s, const Batch& batch, const Tensor& h0,
                const StatePass& dpass, const Probe& probe, const Stream& stream) const;

 protected:
  Mixer(const ModelConfig& config, int64_t layer, const ParameterSet& p, const std::string& prefix,
        const std::string& norm, const std::string& out);

  /// y1 -> q, k, v and gates.
  virtual void project(const LayerActivations& a, const Scratch& s, const Batch& batch, const Stream& stream) const = 0;
  /// Gradients of q, k, v and gates in the scratch -> adds to s.dy; weight gradients.
  virtual void project_backward(const LayerActivations& a, const Scratch& s, const Batch& batch,
                                const Stream& stream) const = 0;
  virtual AttentionInputs inputs(const LayerActivations& a, const Batch& batch) const = 0;

  int64_t layer_;
  LayerDims dims_;
  double weakest_log_decay_ = 0;  // of a token in any head, where decays are fixed
  Activation gate_act_ = Activation::kNone;
  Parameter gate_, gate_bias_, out_;  // output gate [H V, D] and its bias, output projection [D, H V]

 private:
  FixedDecays fixed_decays(const AttentionInputs& in, const Scratch& s, const Batch& batch) const;
  /// o as rows of one norm: heads apart (gla) or joint (tnl).
  Tensor norm_rows(const Tensor& o) const;
  void output(const LayerActivations& a, const Scratch& s, const Stream& stream) const;
  /// y1 -> the output gate; its gradient -> s.dy and weight gradients.
  void gate_forward(const LayerActivations& a, const Stream& stream) const;
  void gate_backward(const LayerActivations& a, const Scratch& s, const Stream& stream) const;

  Norm norm_;
};

/// The two families; prefix is that of their parameters, "model.layers.0.attn.".
std::unique_ptr<Mixer> make_gla_mixer(const ModelConfig& config, int64_t layer, const ParameterSet& p,
                                      const std::string& prefix, Arena& arena, Precision precision);
std::unique_ptr<Mixer> make_lightning_mixer(const ModelConfig& config, int64_t layer, const ParameterSet& p,
                                            const std::string& prefix, Arena& arena, Precision precision);

/// x [B, T, ...] as rows of tokens [B T, ...].
Tensor token_rows(const Tensor& x);

}  // namespace baton
