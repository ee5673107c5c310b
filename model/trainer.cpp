#include "model/trainer.h"

#include <array>
#include <bit>
#include <cmath>

#include "kernels/elementwise.h"
#include "runtime/profiler.h"

namespace baton {
namespace {

/// The host pointers of row b of a batch.
SampleSlice row(const Batch& batch, int64_t b) {
  const int64_t at = b * batch.tokens.dim(1);
  return {batch.tokens.as<int32_t>() + at, batch.targets.as<int32_t>() + at, batch.starts.as<uint8_t>() + at,
          batch.positions.as<int64_t>() + at};
}

}  // namespace

Trainer::Trainer(const Config& config, Purpose purpose, const Ranks& ranks, bool measuring)
    : config_(config), purpose_(purpose), ranks_(ranks), dtype_(parse_dtype(config.run.dtype)), stream_(ranks.stream) {
  const int64_t batch_per_dp = config.train.batch / ranks.topology.dp_size();
  micro_batch_ = config.train.micro_batch > 0 ? config.train.micro_batch : batch_per_dp;
  window_ = config.train.window > 0 ? config.train.window : config.data.seq_len;
  arena_ = std::make_unique<Arena>(stream_.device);
  lay_out(*arena_);
  if (measuring) return;
  auto allocated = std::make_unique<Arena>(stream_.device, arena_->used_bytes());
  lay_out(*allocated);
  arena_ = std::move(allocated);
  initialize(model_->table(), model_->parameters().values, config.run.seed);
  weights_changed();
}

void Trainer::lay_out(Arena& arena) {
  const bool training = purpose_ == Purpose::kTrain;
  const int64_t T =
      WindowPlan::capacity(std::max(config_.data.seq_len, config_.eval.seq_len), window_, ranks_.topology.sp_size);
  const bool exact = config_.train.window_mode == "exact";
  const int64_t num_windows = !training ? 0 : exact ? plan(config_.data.seq_len).num_windows() : 1;
  pass_.reset();
  optimizer_.reset();
  model_ = std::make_unique<Model>(config_.model, dtype_, micro_batch_, T, training, arena);
  if (training) {
    optimizer_ = std::make_unique<Optimizer>(model_->parameters(), arena);
    reduction_ = std::make_unique<GradientReduction>(*ranks_.world, model_->parameters().gradients,
                                                     model_->num_layers() + 1, arena);
  }
  pass_ =
      std::make_unique<SequencePass>(*model_, *ranks_.sp, parse_scan_strategy("parallel.scan", config_.parallel.scan),
                                     micro_batch_, T, num_windows, arena, config_.parallel.early_send);
  if (training && config_.in_stream_order())
    kept_ = KeptState(*model_, ranks_.topology, config_.train.batch, micro_batch_, arena);
}

WindowPlan Trainer::plan(int64_t T_total) const {
  return {T_total, std::min(window_, T_total), ranks_.topology.sp_size, ranks_.topology.sp_rank()};
}

StreamPlace Trainer::place(int64_t sample) const {
  const int64_t batch = config_.train.batch;
  return {sample / batch, sample % batch, batch, config_.data.seq_len};
}

LoadTokens Trainer::loader(const Dataset& data, int64_t first) {
  return [this, &data, first](Range range, const Batch& batch) {
    together(*ranks_.world, [&] {  // a bad token on one rank is everybody's error
      for (int64_t i = 0; i < micro_batch_; ++i) {
        const StreamPlace at = place(first + i);
        if (config_.in_stream_order())
          data.read_stream(at, kept_.positions()[at.row], range.first, range.size(), row(batch, i));
        else
          data.read_train(first + i, static_cast<uint64_t>(config_.run.seed), config_.data.seq_len, range.first,
                          range.size(), row(batch, i));
      }
    });
  };
}

void Trainer::begin_rows(const Dataset& data, int64_t first_sample) {
  if (!config_.in_stream_order()) return;
  const StreamPlace at = place(first_sample);
  if (at.step > 0 && at.step % data.num_stream_steps(at.num_rows, at.seq_len) == 0) kept_.clear(stream_);
}

void Trainer::keep_rows(const Dataset& data, int64_t first_sample) {
  for (int64_t& position : kept_.positions()) position = data.position_after(place(first_sample++), position);
  kept_.advance();
}

StepResult Trainer::train_step(const Dataset& data, int64_t step, int64_t first_sample,
                               const ShouldAbandon& should_abandon, const Probe& probe) {
  const Stream& stream = stream_;
  const int64_t batch = config_.train.batch, T = config_.data.seq_len, dp = ranks_.topology.dp_size();
  const Tensor& gradients = model_->parameters().gradients;
  const ProfilerRange whole("step", step);
  // Scaled by the tokens there are at most; the exact divisor, known after the pass, is applied with the clipping.
  const double nominal_tokens = static_cast<double>(batch) * static_cast<double>(T);
  const int64_t num_micro = batch / (dp * micro_batch_);
  set_zero(gradients, stream);
  reduction_->start(stream);
  begin_rows(data, first_sample);
  SequencePass::Result total;
  for (int64_t m = 0; m < num_micro; ++m) {
    if (m > 0 && should_abandon && should_abandon()) return {.abandoned = true};
    const int64_t first = first_sample + (m * dp + ranks_.topology.dp_rank()) * micro_batch_;
    const auto r = pass_->train(plan(T), config_.train.window_mode == "exact", 1.0 / nominal_tokens,
                                loader(data, first), kept_.micro_batch(m), should_abandon,
                                m == num_micro - 1 ? reduction_.get() : nullptr, m == 0 ? probe : Probe{}, stream);
    if (r.abandoned) return {.abandoned = true};
    total.loss_sum += r.loss_sum;
    total.counted += r.counted;
  }
  ProfilerRange phase("reduce gradients");
  reduction_->finish();
  require_finite(total.loss_sum, true, fmt::format("step {}", step));
  StepResult result;
  result.tokens = all_reduce(*ranks_.world, total.counted, ReduceOp::kSum);
  const double counted = static_cast<double>(std::max<int64_t>(result.tokens, 1));
  result.loss = all_reduce(*ranks_.world, total.loss_sum, ReduceOp::kSum) / counted;
  const double rescale = nominal_tokens / counted;
  result.grad_norm = std::sqrt(sum_of_squares(gradients, stream)) * rescale;
  require_finite_sum(result.grad_norm, step);
  phase.next("optimizer");
  const double clip = config_.train.clip;
  const double clipping = clip > 0 && result.grad_norm > clip ? clip / result.grad_norm : 1.0;
  optimizer_->step(config_.train, step, rescale * clipping, stream);
  weights_changed();
  keep_rows(data, first_sample);
  return result;
}

void Trainer::require_finite(double loss_sum, bool training, const std::string& when) const {
  const Stream& stream = stream_;
  const ParameterSet& p = model_->parameters();
  // Loss and gradient alone are looked at every time; where the fault came in is searched only once there is one.
  together(*ranks_.world, [&] {
    const std::vector<Range> bad = training ? reduction_->not_finite(stream) : std::vector<Range>{};
    if (std::isfinite(loss_sum) && bad.empty()) return;
    const std::string where = fmt::format("on rank {} is not finite; weights untouched", ranks_.topology.world_rank);
    for (const ParameterRow& row : p.table->rows())
      CHECK_CODE(ExitCode::kNotFinite, all_finite(p.table->view(p.values, row), stream), "{}: the weight {} {}", when,
                 row.name, where);
    for (const States& states : pass_->entering())
      for (size_t l = 0; l < states.size(); ++l)
        CHECK_CODE(ExitCode::kNotFinite, all_finite(states[l], stream), "{}: the state entering layer {} {}", when, l,
                   where);
    CHECK_CODE(ExitCode::kNotFinite, std::isfinite(loss_sum), "{}: the loss {}", when, where);
    // What this rank gave to a sum made the sum not finite, too.
    for (const ParameterRow& row : p.table->rows())
      for (const Range& bucket : bad)
        CHECK_CODE(ExitCode::kNotFinite,
                   row.offset < bucket.first || row.offset >= bucket.last ||
                       all_finite(p.table->view(p.gradients, row), stream),
                   "{}: the gradient of {} {}", when, row.name, where);
  });
}

void Trainer::require_finite_sum(double grad_norm, int64_t step) const {
  const ParameterSet& p = model_->parameters();
  together(*ranks_.world, [&] {
    if (std::isfinite(grad_norm)) return;
    for (const ParameterRow& row : p.table->rows())
      CHECK_CODE(ExitCode::kNotFinite, all_finite(p.table->view(p.gradients, row), stream_),
                 "step {}: the gradient of {}, summed over all ranks, is not finite; weights untouched", step,
                 row.name);
    CHECK_CODE(ExitCode::kNotFinite, false, "step {}: the norm of the gradient is not finite; weights untouched", step);
  });
}

EvalResult Trainer::evaluate(const Dataset& data, const ShouldAbandon& should_abandon) {
  const Stream& stream = stream_;
  const int64_t T = config_.eval_length().tokens;
  const int64_t dp = ranks_.topology.dp_size();
  const int64_t num_samples = std::clamp<int64_t>(config_.eval.tokens / T, 1, data.num_samples(T));
  std::array<double, 2 * 64> bucket{};  // by bucket of position: loss, count
  const auto on_window = [&](Range range, const Batch& batch, const Tensor& losses) {
    for (int64_t i = 0; i < losses.numel(); ++i) {
      if (batch.targets.as<int32_t>()[i] < 0) continue;
      const auto position = static_cast<uint64_t>(range.first + i % range.size());
      const int b = std::bit_width(position + 1) - 1;
      bucket[2 * b] += losses.as<double>()[i];
      bucket[2 * b + 1] += 1;
    }
  };
  for (int64_t first = 0; first < num_samples; first += dp * micro_batch_) {
    const int64_t mine = first + ranks_.topology.dp_rank() * micro_batch_;
    const LoadTokens load = [&](Range range, const Batch& b) {
      together(*ranks_.world, [&] {
        for (int64_t i = 0; i < micro_batch_; ++i) {
          const SampleSlice slice = row(b, i);
          data.read_val(std::min(mine + i, num_samples - 1), T, range.first, range.size(), slice);
          if (mine + i >= num_samples) std::fill_n(slice.targets, range.size(), -1);  // past the end: counts nothing
        }
      });
    };
    if (pass_->evaluate(plan(T), load, should_abandon, on_window, stream).abandoned) {
      EvalResult stopped;
      stopped.abandoned = true;
      return stopped;
    }
  }
  double loss = 0, count = 0;
  for (int b = 0; b < 64; ++b) loss += bucket[2 * b];
  require_finite(loss, false, "validation");
  ranks_.world->all_reduce({bucket.data(), {2 * 64}, DType::kFloat64, {}}, ReduceOp::kSum, Stream{});
  EvalResult result;
  loss = 0;
  for (int b = 0; b < static_cast<int>(std::bit_width(static_cast<uint64_t>(T))); ++b) {
    loss += bucket[2 * b];
    count += bucket[2 * b + 1];
    result.by_position.push_back(bucket[2 * b] / bucket[2 * b + 1]);  // NaN where a bucket counted nothing
  }
  result.tokens = static_cast<int64_t>(count);
  result.loss = loss / std::max(count, 1.0);
  return result;
}

std::vector<NamedTensor> Trainer::tensors() const {
  return optimizer_ ? optimizer_->tensors() : parameter_tensors(model_->parameters());
}

double Trainer::flops_per_token() const {
  const ModelConfig& c = config_.model;
  int64_t multiplying = model_->table().num_parameters();
  if (!c.tie_embeddings) multiplying -= c.vocab * c.width;  // a lookup multiplies nothing
  double flops = 6.0 * static_cast<double>(multiplying);
  for (int64_t l = 0; l < c.layers; ++l) {
    const LayerDims d = LayerDims::of(c, l);
    // Forward: state update and read, 4 K V a head; backward twice that.
    flops += 12.0 * static_cast<double>(d.H * d.operator_k() * d.V);
  }
  return flops;
}

}  // namespace baton
