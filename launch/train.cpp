// baton train: steps, validation, checkpoints, metrics, and stopping on request.
//
//   baton train --config configs/gla-tiny.cfg
//   mpirun -np 4 baton train --config configs/gla-tiny.cfg --train.steps 200 --checkpoint.resume auto
#include <chrono>
#include <cmath>
#include <filesystem>

#include "launch/job.h"
#include "launch/memory_plan.h"
#include "launch/run_directory.h"
#include "model/schedule.h"
#include "model/state_dump.h"
#include "runtime/log.h"
#include "runtime/profiler.h"
#include "runtime/stop_request.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

/// Agreed over all ranks: has anyone been asked to stop, and is the grace over?
enum class Stop : int64_t { kNo = 0, kAfterStep = 1, kNow = 2 };
Stop stop_requested(Group& world, double grace) {
  const double since = seconds_since_stop_request();
  const Stop mine = since < 0 ? Stop::kNo : since < grace ? Stop::kAfterStep : Stop::kNow;
  return static_cast<Stop>(all_reduce(world, static_cast<int64_t>(mine), ReduceOp::kMax));
}

/// FLOP/s of all ranks together: as configured, or a matrix product's, run on all ranks at once.
double peak_flops(const Job& job) {
  if (job.config.run.peak_tflops > 0) return job.config.run.peak_tflops * 1e12 * job.world.size();
  const Stream& stream = job.ranks.stream;
  const int64_t n = stream.device.type == DeviceType::kCpu ? 512 : 8192;
  constexpr int kRuns = 5;
  const DType dtype = parse_dtype(job.config.run.dtype);
  const OwnedTensor a({n, n}, dtype, stream.device), b({n, n}, dtype, stream.device), c({n, n}, dtype, stream.device);
  matmul(a, Trans::kNo, b, Trans::kNo, c, 0.0, stream);
  synchronize(stream);
  job.world.barrier();
  const auto start = Clock::now();
  for (int i = 0; i < kRuns; ++i) matmul(a, Trans::kNo, b, Trans::kNo, c, 0.0, stream);
  synchronize(stream);
  const double flops = 2.0 * static_cast<double>(n * n * n) * kRuns / seconds_since(start);
  return all_reduce(job.world, flops, ReduceOp::kSum);
}

/// Highest memory of this process on the CPU; on a GPU what is in use of the device, which no step changes.
int64_t memory_in_use(const Device& device) {
  if (device.type == DeviceType::kCpu) return peak_memory_bytes();
  const cuda::DeviceMemory memory = cuda::device_memory(device.index);
  return memory.total - memory.free;
}

/// All that a checkpoint holds.
std::vector<NamedTensor> with(std::vector<NamedTensor> tensors, const KeptState::Rows& rows) {
  for (NamedTensor& x : rows.tensors()) tensors.push_back(std::move(x));
  return tensors;
}

/// One training run: the trainer and what surrounds its steps.
class TrainingRun {
 public:
  explicit TrainingRun(Job& job);
  ExitCode run();

 private:
  void load();
  void set_aside();
  void save();
  bool evaluate();
  void profile(bool wanted);
  std::unique_ptr<StateDump> make_dump(int64_t step) const;
  void report(const StepResult& step, double step_s);
  std::string checkpoint_dir() const { return checkpoints_dir(config_) + "/" + checkpoint_name(state_.step); }
  bool on_gpu() const { return job_.ranks.stream.device.type == DeviceType::kCuda; }
  bool due(int64_t every) const {
    return (every > 0 && state_.step % every == 0) || state_.step == config_.train.steps;
  }

  Job& job_;
  const Config& config_;
  MemoryRows beside_arena_;
  double peak_flops_;  // measured while the trainer's memory is not taken yet
  Trainer trainer_;
  RunState state_;
  double val_loss_ = NAN;
  int64_t mem_bytes_ = 0;
  int64_t saved_step_ = -1;
  bool profiled_ = false;
  std::unique_ptr<MetricsWriter> metrics_;
  ConsoleLine console_;
  Clock::time_point started_ = Clock::now();
  int64_t first_step_ = 0;
};

TrainingRun::TrainingRun(Job& job)
    : job_(job),
      config_(job.config),
      beside_arena_(on_gpu() ? beside_arena(job.ranks.topology) : MemoryRows{}),
      peak_flops_(peak_flops(job)),
      trainer_(job.config, Trainer::Purpose::kTrain, job.ranks, false) {
  load();  // first, as a run that is refused leaves run.dir as it was
  prepare_run_directory(config_, job.world);
  first_step_ = state_.step;
  together(job.world, [&] {
    if (!job.root()) return;
    set_aside();
    metrics_ = std::make_unique<MetricsWriter>(config_.run.dir, state_.step);
  });
  if (!job.root()) return;
  fmt::print("{}\n{}", to_ini(config_), memory_table(trainer_.arena(), beside_arena_));
  fmt::print("{} parameters, {} ranks (dp {} x sp {}), {} steps from {}, {} tokens a step\n",
             trainer_.model().table().num_parameters(), job.world.size(), job.ranks.topology.dp_size(),
             job.ranks.topology.sp_size, config_.train.steps, state_.step + 1,
             config_.train.batch * config_.data.seq_len);
}

void TrainingRun::load() {
  state_.seed = config_.run.seed;
  std::string resume;
  together(job_.world, [&] {
    if (!job_.root()) return;
    resume = checkpoint_to_resume(config_);
    CHECK_INPUT(!resume.empty() || newest_checkpoint(config_).empty(),
                "run.dir = {}: holds checkpoints of an earlier run; it must be another directory, or give "
                "--checkpoint.resume auto to go on",
                config_.run.dir);
  });
  resume = broadcast(job_.world, resume, 0);
  const CheckpointConfig& from = config_.checkpoint;
  const KeptState::Rows rows = trainer_.kept_state().make_rows();
  if (!resume.empty()) {
    state_ = load_checkpoint("checkpoint.resume", resume, job_, with(trainer_.tensors(), rows));
    std::error_code none;
    if (std::filesystem::equivalent(resume, checkpoint_dir(), none)) saved_step_ = state_.step;
  } else {
    if (!from.load.empty())
      load_checkpoint("checkpoint.load", from.load, job_, parameter_tensors(trainer_.model().parameters()));
    if (!from.state.empty()) load_checkpoint("checkpoint.state", from.state, job_, rows.tensors());
  }
  trainer_.weights_changed();
  trainer_.kept_state().set(rows, trainer_.stream());
}

/// What steps from here on would come upon: checkpoints of a branch that this run leaves by resuming an older one.
void TrainingRun::set_aside() {
  const int64_t first = saved_step_ == state_.step ? state_.step + 1 : state_.step;
  const std::string dir = set_aside_checkpoints(checkpoints_dir(config_), first);
  if (!dir.empty()) fmt::print("checkpoints from step {} on are of another branch now: moved to {}\n", first, dir);
}

void TrainingRun::save() {
  if (saved_step_ == state_.step) return;
  const ProfilerRange range("checkpoint");
  const std::string dir = checkpoint_dir();
  Group& world = job_.world;
  const KeptState::Rows rows = trainer_.kept_state().gather(world, trainer_.stream());
  const std::vector<NamedTensor> tensors = with(trainer_.tensors(), rows);
  OwnedTensor mine({2}, DType::kInt64), all({world.size(), 2}, DType::kInt64);
  together(world, [&] {
    const PartInfo part = write_part(dir, tensors, world.rank(), world.size());
    mine.tensor.as<int64_t>()[0] = part.bytes;
    mine.tensor.as<int64_t>()[1] = part.checksum;
  });
  world.all_gather(mine, all, Stream{});
  together(world, [&] {
    if (world.rank() != 0) return;
    std::vector<PartInfo> parts;
    for (int r = 0; r < world.size(); ++r)
      parts.push_back({all.tensor.as<int64_t>()[2 * r], all.tensor.as<int64_t>()[2 * r + 1]});
    commit_checkpoint(dir, tensors, state_, to_ini(config_), parts);
    prune_checkpoints(checkpoints_dir(config_), config_.checkpoint.keep);
  });
  saved_step_ = state_.step;
}

bool TrainingRun::evaluate() {
  const ProfilerRange range("validation");
  const EvalResult r =
      trainer_.evaluate(*job_.val, [&] { return stop_requested(job_.world, config_.run.grace) != Stop::kNo; });
  if (!r.abandoned) val_loss_ = r.loss;
  return !r.abandoned;
}

/// Between steps: has the CUDA profiler record what follows, or not.
void TrainingRun::profile(bool wanted) {
  const Stream& stream = job_.ranks.stream;
  if (wanted == profiled_ || stream.device.type == DeviceType::kCpu) return;
  synchronize(stream);
  wanted ? cuda::start_profiler() : cuda::stop_profiler();
  profiled_ = wanted;
}

std::unique_ptr<StateDump> TrainingRun::make_dump(int64_t step) const {
  std::unique_ptr<StateDump> dump;
  if (config_.dump.every == 0 || step % config_.dump.every != 0) return dump;
  together(job_.world,
           [&] { dump = std::make_unique<StateDump>(config_, job_.ranks.topology, config_.run.dir + "/dumps", step); });
  return dump;
}

void TrainingRun::report(const StepResult& step, double step_s) {
  mem_bytes_ = all_reduce(job_.world, memory_in_use(job_.ranks.stream.device), ReduceOp::kMax);
  if (!job_.root()) return;
  StepMetrics m;
  m.step = state_.step;
  m.tokens = state_.tokens;
  m.loss = step.loss;
  m.val_loss = val_loss_;
  m.lr = learning_rate(config_.train, state_.step);
  m.grad_norm = step.grad_norm;
  m.tokens_per_s = static_cast<double>(step.tokens) / step_s;
  m.tokens_per_s_per_rank = m.tokens_per_s / job_.world.size();
  m.mfu = m.tokens_per_s * trainer_.flops_per_token() / peak_flops_;
  m.step_s = step_s;
  m.mem_bytes = mem_bytes_;
  metrics_->write(m);
  if (state_.step % std::max<int64_t>(config_.run.log_every, 1) != 0 && state_.step != config_.train.steps) return;
  const double mean_s = seconds_since(started_) / static_cast<double>(state_.step - first_step_);
  std::string line = fmt::format(
      "step {}/{} loss {:.4f} lr {:.2e} norm {:.2f} | {:.0f} tokens/s, {:.0f} a rank, MFU {:.1f}% | {} | ETA {}",
      m.step, config_.train.steps, m.loss, m.lr, m.grad_norm, m.tokens_per_s, m.tokens_per_s_per_rank, 100 * m.mfu,
      format_bytes(mem_bytes_), format_seconds(mean_s * static_cast<double>(config_.train.steps - state_.step)));
  if (!std::isnan(val_loss_)) line += fmt::format(" | val {:.4f}", val_loss_);
  console_.show(line);
}

ExitCode TrainingRun::run() {
  Stop stop = Stop::kNo;
  const ShouldAbandon should_abandon = [&] { return stop_requested(job_.world, config_.run.grace) == Stop::kNow; };
  const StepRange profiled = parse_step_range("run.profile", config_.run.profile);
  started_ = Clock::now();
  while (state_.step < config_.train.steps && stop == Stop::kNo) {
    profile(profiled.contains(state_.step + 1));
    const auto start = Clock::now();
    const auto dump = make_dump(state_.step + 1);
    const StepResult step = trainer_.train_step(*job_.train, state_.step + 1, state_.samples, should_abandon,
                                                dump ? dump->probe() : Probe{});
    if (step.abandoned) {
      stop = Stop::kNow;
      break;
    }
    const double step_s = seconds_since(start);
    if (dump) dump->commit(job_.world);
    ++state_.step;
    const ProfilerRange after("after step", state_.step);
    state_.samples += config_.train.batch;
    state_.tokens += step.tokens;
    val_loss_ = NAN;
    stop = stop_requested(job_.world, config_.run.grace);
    if (stop == Stop::kNo && job_.val && due(config_.eval.every) && !evaluate()) stop = Stop::kAfterStep;
    report(step, step_s);
    if (stop == Stop::kNo && due(config_.checkpoint.every)) save();
    if (stop == Stop::kNo) stop = stop_requested(job_.world, config_.run.grace);
  }
  profile(false);
  save();
  const int64_t handed_on = all_reduce(job_.world, trainer_.scan().sent_bytes(), ReduceOp::kSum);
  const int64_t wrapped = all_reduce(job_.world, trainer_.scan().wrapped_bytes(), ReduceOp::kSum);
  if (!job_.root()) return stop == Stop::kNo ? ExitCode::kDone : ExitCode::kStopped;
  console_.end();
  fmt::print("states handed on: {} bytes between ranks, {} bytes between windows and steps\n", handed_on, wrapped);
  if (on_gpu())
    fmt::print("memory of a GPU: {} in use, {} planned\n", format_bytes(mem_bytes_),
               format_bytes(trainer_.arena().used_bytes() + total_bytes(beside_arena_)));
  if (stop != Stop::kNo) {
    fmt::print("stopped on request after step {}; checkpoint {}\n", state_.step, newest_checkpoint(config_));
    return ExitCode::kStopped;
  }
  fmt::print("done: {} steps, {} tokens in {}; checkpoint {}, metrics {}/metrics.jsonl\n", state_.step, state_.tokens,
             format_seconds(seconds_since(started_)), newest_checkpoint(config_), config_.run.dir);
  return ExitCode::kDone;
}

}  // namespace

ExitCode run_train(Job& job) {
  together(job.world, [&] {
    CHECK_INPUT(job.train.has_value(), "data.train = \"\": training needs files; give a glob");
    job.train->require(job.config.train_length());
    if (job.val) job.val->require(job.config.eval_length());
  });
  return TrainingRun(job).run();
}

}  // namespace baton
