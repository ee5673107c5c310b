// Trainer: one optimizer step over all ranks, and evaluation. Owns the arena, the model, the optimizer and the passes.
#pragma once

#include <functional>
#include <memory>

#include "model/kept_state.h"
#include "model/optimizer.h"
#include "model/sequence_pass.h"
#include "runtime/dataset.h"

namespace baton {

/// What a step reports; equal on all ranks.
struct StepResult {
  double loss = 0;       // mean over the step's counted tokens
  double grad_norm = 0;  // before clipping
  int64_t tokens = 0;    // counted
  bool abandoned = false;
};

struct EvalResult {
  double loss = 0;  // nats a token
  int64_t tokens = 0;
  /// Mean loss by position: bucket i holds positions [2^i - 1, 2^(i+1) - 1).
  std::vector<double> by_position;
  bool abandoned = false;
};

/// The groups of a job as the trainer sees it, and the device this rank computes on.
struct Ranks {
  Topology topology;
  Group* world = nullptr;
  Group* sp = nullptr;
  Stream stream;
};

class Trainer {
 public:
  enum class Purpose { kTrain, kEvaluate };

  /// config must be validated and config.model.vocab known. Lays out and allocates; weights are initialised from the
  /// seed. A measuring trainer (`plan`) lays out and allocates nothing.
  Trainer(const Config& config, Purpose purpose, const Ranks& ranks, bool measuring);

  /// Step `step` (from 1) on samples [state.samples, + batch); in stream order those are a sequence of every row, which
  /// starts from the kept state. Throws Error(kNotFinite) before touching the weights.
  /// The probe sees the first micro-batch of each dp rank.
  StepResult train_step(const Dataset& data, int64_t step, int64_t first_sample, const ShouldAbandon& should_abandon,
                        const Probe& probe);
  /// The first eval.tokens of the set, the same at any rank count.
  EvalResult evaluate(const Dataset& data, const ShouldAbandon& should_abandon);

  Model& model() { return *model_; }
  const Arena& arena() const { return *arena_; }
  const StateScan& scan() const { return pass_->scan(); }
  /// Keeps nothing but in stream order.
  KeptState& kept_state() { return kept_; }
  /// Weights and moments (training), or weights alone, on the trainer's device.
  std::vector<NamedTensor> tensors() const;
  /// To be called when weights were written from outside.
  void weights_changed() { model_->refresh_operands(stream_); }
  const Stream& stream() const { return stream_; }
  /// Floating-point operations of one token, forward and backward: 6 a weight that multiplies, and the operator's.
  double flops_per_token() const;
  const Config& config() const { return config_; }

 private:
  void lay_out(Arena& arena);
  void require_finite(double loss_sum, bool training, const std::string& when) const;
  void require_finite_sum(double grad_norm, int64_t step) const;
  WindowPlan plan(int64_t T_total) const;
  StreamPlace place(int64_t sample) const;
  /// Fills a batch with samples from `first` on.
  LoadTokens loader(const Dataset& data, int64_t first);
  /// Around a step in stream order: rows that begin their stretch again start anew; what the step leaves is kept.
  void begin_rows(const Dataset& data, int64_t first_sample);
  void keep_rows(const Dataset& data, int64_t first_sample);

  Config config_;
  Purpose purpose_;
  Ranks ranks_;
  DType dtype_;
  Stream stream_;
  int64_t micro_batch_ = 1, window_ = 0;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<GradientReduction> reduction_;
  std::unique_ptr<SequencePass> pass_;
  KeptState kept_;
};

}  // namespace baton
