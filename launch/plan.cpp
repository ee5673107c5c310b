// baton plan: what a configuration would take, without allocating it.
//
//   baton plan --config configs/gla-1.3b.cfg
//   baton plan --config configs/gla-1.3b.cfg --parallel.sp 8 --data.seq_len 1048576 --train.window 131072
//   baton plan --config configs/gla-1.3b.cfg --train.micro_batch 1 --plan.memory 80
#include "launch/job.h"
#include "launch/memory_plan.h"
#include "model/carry.h"
#include "runtime/cuda.h"
#include "runtime/log.h"

namespace baton {
namespace {

/// Bytes of one GPU, as asked for or as found; 0 where neither is known.
int64_t gpu_bytes(double gib) {
  if (gib > 0) return static_cast<int64_t>(gib * (1 << 30));
  return cuda::num_devices() > 0 ? cuda::device_memory(0).total : 0;
}

void print_largest_window(const Job& job, const MemoryRows& beside) {
  const int64_t limit = gpu_bytes(job.config.plan.memory);
  if (limit == 0) return;
  const int64_t largest = largest_window(job.config.data.seq_len, limit, [&](int64_t window, int64_t T_total) {
    Config c = job.config;
    c.train.window = window;
    c.data.seq_len = T_total;
    return Trainer(c, Trainer::Purpose::kTrain, job.ranks, true).arena().used_bytes() + total_bytes(beside);
  });
  fmt::print("with {} a GPU: ", format_bytes(limit));
  if (largest == 0)
    fmt::print("no window fits\n");
  else
    fmt::print("windows of up to {} tokens (train.window)\n", largest);
}

/// Who sends what is printed after it.
const char* senders(ScanStrategy scan) {
  switch (scan) {
    case ScanStrategy::kChain:
      return "from each rank but the last";
    case ScanStrategy::kDoubling:
      return "from each rank that has one 1, 2, 4, ... ahead, a message for each";
    case ScanStrategy::kAllGather:
      return "from each rank to all";
  }
  return "";
}

}  // namespace

ExitCode run_plan(Job& job) {
  const Config& c = job.config;
  together(job.world, [&] {
    CHECK_INPUT(c.model.vocab > 0,
                "model.vocab = 0: a plan without data.train needs the vocabulary; give --model.vocab");
  });
  const Trainer trainer(c, Trainer::Purpose::kTrain, job.ranks, true);
  if (!job.root()) return ExitCode::kDone;
  const bool may_use_gpu = c.run.device != "cpu" && c.run.dtype != "float64";
  const MemoryRows beside = may_use_gpu ? beside_arena(job.ranks.topology) : MemoryRows{};
  fmt::print("{}\n{}", parameter_table(const_cast<Trainer&>(trainer).model().table()),
             memory_table(trainer.arena(), beside));
  if (may_use_gpu) print_largest_window(job, beside);
  fmt::print("\n");
  const int64_t sp = job.ranks.topology.sp_size, dp = job.ranks.topology.dp_size();
  const int64_t micro = c.train.micro_batch > 0 ? c.train.micro_batch : c.train.batch / dp;
  const int64_t window = std::min(c.train.window > 0 ? c.train.window : c.data.seq_len, c.data.seq_len);
  const WindowPlan plan{c.data.seq_len, window, sp, 0};
  const int64_t W = plan.num_windows(), num_micro = c.train.batch / (dp * micro);
  const ScanStrategy scan = parse_scan_strategy("parallel.scan", c.parallel.scan);
  const int64_t number_bytes = c.run.dtype == "float64" ? 8 : 4;
  int64_t state_bytes = 0, sent_bytes = 0;
  fmt::print("hand-over of one layer, forward, {} (backward: the same from the other end)\n", senders(scan));
  for (int64_t l = 0; l < c.model.layers; ++l) {
    const LayerDims d = LayerDims::of(c.model, l);
    const int64_t state = micro * d.H * d.operator_k() * d.V;
    const int64_t carry = carry_numel(d.attention(micro, 1, DType::kFloat32));
    const int64_t sent = scan == ScanStrategy::kChain ? state : carry;
    state_bytes += state * number_bytes;
    sent_bytes += sent * number_bytes * StateScan::max_messages(scan, static_cast<int>(sp));
    if (l > 0 && d.lrpe == LayerDims::of(c.model, l - 1).lrpe) continue;
    fmt::print("  layer {} on: {} = {} x {} x {} x {} x {}{} ({})\n", l, sent * number_bytes, number_bytes, micro, d.H,
               d.operator_k(), d.V, sent > state ? fmt::format(" + {} of decays", (sent - state) * number_bytes) : "",
               format_bytes(sent * number_bytes));
  }
  if (sp == 1) state_bytes = 0;  // it stays where it is
  fmt::print("  a step and rank, all layers, forward and backward: {} in each of {} windows x {} micro-batches{}{}\n",
             format_bytes(2 * sent_bytes), W, num_micro,
             W > 1 ? fmt::format("; between windows {}", format_bytes(2 * state_bytes)) : "",
             c.in_stream_order() ? fmt::format("; to the next step {}", format_bytes(num_micro * state_bytes)) : "");
  fmt::print("{} ranks (dp {} x sp {}), shards of up to {} tokens, {} tokens a step, {:.3g} FLOP a token\n",
             job.ranks.topology.world_size, dp, sp, WindowPlan::capacity(c.data.seq_len, window, sp),
             c.train.batch * c.data.seq_len, trainer.flops_per_token());
  return ExitCode::kDone;
}

}  // namespace baton
