#include "model/sequence_pass.h"

#include <algorithm>

namespace baton {
namespace {

int64_t count_targets(const Batch& batch) {
  const int32_t* t = batch.targets.as<int32_t>();
  return std::count_if(t, t + batch.targets.numel(), [](int32_t x) { return x >= 0; });
}

void zero(const States& states, const Stream& stream) {
  for (const Tensor& s : states) set_zero(s, stream);
}

}  // namespace

Range WindowPlan::shard(int64_t w) const {
  const int64_t first = w * window, length = std::min(window, T_total - first);
  const Range r = shard_of(length, sp_size, sp_rank);
  return {first + r.first, first + r.last};
}

int64_t WindowPlan::capacity(int64_t T_total, int64_t window, int64_t sp_size) {
  const int64_t n = std::min(window, T_total);
  return (n + sp_size - 1) / sp_size;
}

SequencePass::SequencePass(Model& model, Group& sp_group, ScanStrategy strategy, int64_t B, int64_t T,
                           int64_t max_windows, Arena& arena)
    : model_(model), scan_(sp_group, strategy) {
  capacity_.tokens = arena.tensor("batch", {B, T}, DType::kInt32);
  capacity_.targets = arena.tensor("batch", {B, T}, DType::kInt32);
  capacity_.starts = arena.tensor("batch", {B, T}, DType::kUInt8);
  capacity_.positions = arena.tensor("batch", {B, T}, DType::kInt64);
  // Evaluation needs two sets: the one that entered a window and the one entering the next.
  for (int64_t w = 0; w < std::max<int64_t>(max_windows, 2); ++w)
    entering_.push_back(model.make_states(arena, "window states"));
  leaving_ = model.make_states(arena, "states");
  if (max_windows == 0) return;
  dentering_ = model.make_states(arena, "states");
  dleaving_ = model.make_states(arena, "states");
}

Batch SequencePass::load_window(const WindowPlan& plan, int64_t w, const LoadTokens& load) {
  const Range range = plan.shard(w);
  const auto cut = [&](Tensor x) {
    x.shape = {x.dim(0), range.size()};
    return x;
  };
  CHECK(range.size() <= capacity_.tokens.dim(1), "a shard of {} tokens exceeds the {} laid out", range.size(),
        capacity_.tokens.dim(1));
  Batch batch{cut(capacity_.tokens), cut(capacity_.targets), cut(capacity_.starts), cut(capacity_.positions), range};
  load(range, batch);
  return batch;
}

void SequencePass::enter_window(bool first, const States& states, const Stream& stream) {
  if (first)
    zero(states, stream);
  else
    scan_.wrap(Direction::kForward, leaving_, states, stream);
}

void SequencePass::loss_and_backward(const Batch& batch, int64_t w, double gradient_scale, const Probe& probe,
                                     Result& result, const Stream& stream) {
  result.loss_sum += model_.head_loss(batch, gradient_scale, true, stream);
  result.counted += count_targets(batch);
  model_.backward(batch, scan_, entering_[w], dleaving_, dentering_, probe, stream);
}

SequencePass::Result SequencePass::train(const WindowPlan& plan, bool exact, double gradient_scale,
                                         const LoadTokens& load, const ShouldAbandon& should_abandon,
                                         const Probe& probe, const Stream& stream) {
  Result result;
  const int64_t W = plan.num_windows();
  const auto abandoned = [&] { return result.abandoned = W > 1 && should_abandon && should_abandon(); };
  zero(dleaving_, stream);
  if (!exact) {
    for (int64_t w = 0; w < W && !abandoned(); ++w) {
      const Batch batch = load_window(plan, w, load);
      enter_window(w == 0, entering_[w % 2], stream);
      model_.forward(batch, &scan_, entering_[w % 2], leaving_, stream);
      loss_and_backward(batch, w % 2, gradient_scale, probe, result, stream);
      zero(dleaving_, stream);
    }
    return result;
  }
  CHECK(W <= static_cast<int64_t>(entering_.size()), "{} windows exceed the {} laid out", W, entering_.size());
  Batch batch;
  for (int64_t w = 0; w < W; ++w) {
    if (abandoned()) return result;
    batch = load_window(plan, w, load);
    enter_window(w == 0, entering_[w], stream);
    model_.forward(batch, &scan_, entering_[w], leaving_, stream);
  }
  for (int64_t w = W - 1; w >= 0; --w) {
    if (w < W - 1) {  // the last window's activations are still there
      if (abandoned()) return result;
      scan_.wrap(Direction::kReversed, dentering_, dleaving_, stream);
      batch = load_window(plan, w, load);
      model_.forward(batch, nullptr, entering_[w], leaving_, stream);
    }
    loss_and_backward(batch, w, gradient_scale, probe, result, stream);
  }
  return result;
}

SequencePass::Result SequencePass::evaluate(const WindowPlan& plan, const LoadTokens& load,
                                            const ShouldAbandon& should_abandon, const OnWindow& on_window,
                                            const Stream& stream) {
  Result result;
  for (int64_t w = 0; w < plan.num_windows(); ++w) {
    if (should_abandon && should_abandon()) {
      result.abandoned = true;
      return result;
    }
    const Batch batch = load_window(plan, w, load);
    enter_window(w == 0, entering_[w % 2], stream);
    model_.forward(batch, &scan_, entering_[w % 2], leaving_, stream);
    result.loss_sum += model_.head_loss(batch, 0.0, false, stream);
    result.counted += count_targets(batch);
    if (on_window) on_window(plan.shard(w), batch, model_.losses().view(batch.tokens.shape));
  }
  return result;
}

}  // namespace baton
