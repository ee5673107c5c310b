#include "model/sequence_pass.h"

#include <algorithm>
#include <array>

namespace baton {
namespace {

int64_t count_targets(const Batch& batch) {
  const int32_t* t = batch.targets.as<int32_t>();
  return std::count_if(t, t + batch.targets.numel(), [](int32_t x) { return x >= 0; });
}

constexpr std::array kBatchTensors{&Batch::tokens, &Batch::targets, &Batch::starts, &Batch::positions};

Tensor scan_scratch(const Model& model, const Group& group, ScanStrategy strategy, Arena& arena) {
  const int64_t numel = StateScan::scratch_numel(strategy, group, model.largest_carry(), model.carry_rows());
  return numel > 0 ? arena.tensor("scan", {numel}, model.parameters().values.dtype) : Tensor{};
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
                           int64_t max_windows, Arena& arena, double early_send)
    : model_(model), sp_group_(sp_group), scan_(sp_group, strategy, scan_scratch(model, sp_group, strategy, arena)) {
  const Shape shape{B, T};
  device_batch_.early_send = early_send;
  device_capacity_.tokens = arena.tensor("batch", shape, DType::kInt32);
  device_capacity_.targets = arena.tensor("batch", shape, DType::kInt32);
  device_capacity_.starts = arena.tensor("batch", shape, DType::kUInt8);
  device_capacity_.positions = arena.tensor("batch", shape, DType::kInt64);
  if (arena.device().type != DeviceType::kCpu && !arena.measuring())
    for (const auto tensor : kBatchTensors) host_capacity_.emplace_back(shape, (device_capacity_.*tensor).dtype);
  if (strategy != ScanStrategy::kChain && !has_learned_decay(model.gate())) {
    device_batch_.shard_tokens = arena.tensor("batch", {sp_group.size(), B}, DType::kInt64);
    host_shard_tokens_ = OwnedTensor(device_batch_.shard_tokens.shape, DType::kInt64);
  }
  // Evaluation needs two sets: the one that entered a window and the one entering the next.
  for (int64_t w = 0; w < std::max<int64_t>(max_windows, 2); ++w)
    entering_.push_back(model.make_states(arena, "window states"));
  leaving_ = model.make_states(arena, "states");
  unwanted_.resize(leaving_.size());
  if (max_windows == 0) return;
  dentering_ = model.make_states(arena, "states");
  dleaving_ = model.make_states(arena, "states");
}

void SequencePass::load_window(const WindowPlan& plan, int64_t w, const LoadTokens& load, const Stream& stream) {
  const Range range = plan.shard(w);
  CHECK(range.size() <= device_capacity_.tokens.dim(1), "a shard of {} tokens exceeds the {} laid out", range.size(),
        device_capacity_.tokens.dim(1));
  synchronize(stream);  // the host's buffers may still be on their way
  const auto next_host = host_capacity_.begin();
  for (size_t i = 0; i < kBatchTensors.size(); ++i) {
    Tensor& on_device = device_batch_.*kBatchTensors[i] = device_capacity_.*kBatchTensors[i];
    Tensor& on_host = host_batch_.*kBatchTensors[i] = host_capacity_.empty() ? on_device : next_host[i].tensor;
    on_device.shape = on_host.shape = {on_device.dim(0), range.size()};
  }
  device_batch_.range = host_batch_.range = range;
  load(range, host_batch_);
  device_batch_.forgets = starts_in_every_row(host_batch_.starts);
  if (device_batch_.shard_tokens.defined()) {
    gather_tokens_of_shards(host_batch_.starts, sp_group_, host_shard_tokens_);
    copy(host_shard_tokens_, device_batch_.shard_tokens, stream);
  }
  if (host_capacity_.empty()) return;
  for (const auto tensor : kBatchTensors) copy(host_batch_.*tensor, device_batch_.*tensor, stream);
}

void SequencePass::enter_window(int64_t w, const Continuation* continuation, const States& states,
                                const Stream& stream) {
  if (w > 0)
    scan_.wrap(Direction::kForward, leaving_, states, stream);
  else if (continuation != nullptr && sp_group_.rank() == 0)
    for (size_t l = 0; l < states.size(); ++l) copy(continuation->entering[l], states[l], stream);
  else
    zero(states, stream);
}

void SequencePass::leave_window(bool last, const Continuation* continuation, const Stream& stream) {
  if (last && continuation != nullptr) scan_.wrap(Direction::kForward, leaving_, continuation->leaving, stream);
}

void SequencePass::loss_and_backward(int64_t w, bool first, double gradient_scale, GradientReduction* reduction,
                                     const Probe& probe, Result& result, const Stream& stream) {
  result.loss_sum += model_.head_loss(device_batch_, gradient_scale, true, stream);
  result.counted += count_targets(host_batch_);
  const States& before = wanted(!first || probe, dentering_);
  model_.backward(device_batch_, scan_, entering_[w], dleaving_, before, reduction, probe, stream);
}

SequencePass::Result SequencePass::train(const WindowPlan& plan, bool exact, double gradient_scale,
                                         const LoadTokens& load, const Continuation* continuation,
                                         const ShouldAbandon& should_abandon, GradientReduction* reduction,
                                         const Probe& probe, const Stream& stream) {
  Result result;
  const int64_t W = plan.num_windows();
  const auto abandoned = [&] { return result.abandoned = W > 1 && should_abandon && should_abandon(); };
  zero(dleaving_, stream);
  if (!exact) {
    for (int64_t w = 0; w < W && !abandoned(); ++w) {
      load_window(plan, w, load, stream);
      enter_window(w, continuation, entering_[w % 2], stream);
      const bool last = w == W - 1;
      model_.forward(device_batch_, &scan_, entering_[w % 2], wanted(!last || continuation, leaving_), stream);
      leave_window(last, continuation, stream);
      loss_and_backward(w % 2, true, gradient_scale, last ? reduction : nullptr, probe, result, stream);
      zero(dleaving_, stream);
    }
    return result;
  }
  CHECK(W <= static_cast<int64_t>(entering_.size()), "{} windows exceed the {} laid out", W, entering_.size());
  for (int64_t w = 0; w < W; ++w) {
    if (abandoned()) return result;
    load_window(plan, w, load, stream);
    enter_window(w, continuation, entering_[w], stream);
    const bool last = w == W - 1;
    model_.forward(device_batch_, &scan_, entering_[w], wanted(!last || continuation, leaving_), stream);
    leave_window(last, continuation, stream);
  }
  for (int64_t w = W - 1; w >= 0; --w) {
    if (w < W - 1) {  // the last window's activations are still there
      if (abandoned()) return result;
      scan_.wrap(Direction::kReversed, dentering_, dleaving_, stream);
      load_window(plan, w, load, stream);
      model_.forward(device_batch_, nullptr, entering_[w], unwanted_, stream);
    }
    loss_and_backward(w, w == 0, gradient_scale, w == 0 ? reduction : nullptr, probe, result, stream);
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
    load_window(plan, w, load, stream);
    enter_window(w, nullptr, entering_[w % 2], stream);
    model_.forward(device_batch_, &scan_, entering_[w % 2], wanted(w + 1 < plan.num_windows(), leaving_), stream);
    result.loss_sum += model_.head_loss(device_batch_, 0.0, false, stream);
    result.counted += count_targets(host_batch_);
    if (on_window) on_window(plan.shard(w), host_batch_, model_.losses().view(host_batch_.tokens.shape));
  }
  return result;
}

}  // namespace baton
