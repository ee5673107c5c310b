// baton plan: what a configuration would take, without allocating it.
//
//   baton plan --config configs/gla-1.3b.cfg
//   baton plan --config configs/gla-1.3b.cfg --parallel.sp 8 --data.seq_len 1048576 --train.window 131072
//   baton plan --config configs/gla-1.3b.cfg --train.micro_batch 1 --plan.memory 80
//   baton plan --config configs/gla-1.3b.cfg --plan.ranks 8,64,256 --plan.step_s 0.3 --plan.latency 20
//     --plan.bandwidth 40 --plan.compose_latency 2 --plan.compose_bandwidth 2000
#include "launch/job.h"
#include "launch/memory_plan.h"
#include "launch/scaling_plan.h"
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
    case ScanStrategy::kHierarchical:
      return "from each rank in slices, to the others of its node and to its own number in nodes ahead";
  }
  return "";
}

void print_hand_over(const Job& job) {
  const Config& c = job.config;
  const StepScans scans = StepScans::of(c, job.ranks.topology);
  const ScanStrategy scan = parse_scan_strategy("parallel.scan", c.parallel.scan);
  const int sp = job.ranks.topology.sp_size;
  int64_t state_bytes = 0, sent_bytes = 0;
  fmt::print("hand-over of one layer, forward, {} (backward: the same from the other end)\n", senders(scan));
  for (int64_t l = 0; l < c.model.layers; ++l) {
    const LayerDims d = LayerDims::of(c.model, l);
    const ScanLayer& layer = scans.layers[static_cast<size_t>(l)];
    const int64_t state = layer.state_bytes, carry = layer.carry_bytes;
    const int64_t sent = scan == ScanStrategy::kChain ? state : carry;
    state_bytes += state;
    sent_bytes += most_sent(scan, sp, layer, c.plan.ranks_per_node);
    if (l > 0 && d.lrpe == LayerDims::of(c.model, l - 1).lrpe) continue;
    const int64_t numel = scans.micro_batch * d.H * d.operator_k() * d.V;
    fmt::print("  layer {} on: {} = {} x {} x {} x {} x {}{} ({})\n", l, sent, state / numel, scans.micro_batch, d.H,
               d.operator_k(), d.V, sent > state ? fmt::format(" + {} of decays", sent - state) : "",
               format_bytes(sent));
  }
  if (sp == 1) state_bytes = 0;  // it stays where it is
  fmt::print(
      "  a step and rank, all layers, forward and backward: {} in each of {} windows x {} micro-batches{}{}\n",
      format_bytes(2 * sent_bytes), scans.windows, scans.micro_batches,
      scans.windows > 1 ? fmt::format("; between windows {}", format_bytes(2 * state_bytes)) : "",
      c.in_stream_order() ? fmt::format("; to the next step {}", format_bytes(scans.micro_batches * state_bytes)) : "");
}

}  // namespace

ExitCode run_plan(Job& job) {
  const Config& c = job.config;
  together(job.world, [&] {
    CHECK_INPUT(c.model.vocab > 0,
                "model.vocab = 0: a plan without data.train needs the vocabulary; give --model.vocab");
  });
  const Trainer trainer(c, Trainer::Purpose::kTrain, job.ranks, true);
  std::string scaling;
  together(job.world, [&] {
    if (c.plan.ranks.empty()) return;
    scaling = scaling_table(ScalingPlan::of(c, job.ranks.topology, ParameterTable(c.model)), c);
  });
  if (!job.root()) return ExitCode::kDone;
  const MemoryRows beside = c.may_use_gpu() ? beside_arena(job.ranks.topology) : MemoryRows{};
  fmt::print("{}\n{}", parameter_table(const_cast<Trainer&>(trainer).model().table()),
             memory_table(trainer.arena(), beside));
  if (c.may_use_gpu()) print_largest_window(job, beside);
  fmt::print("\n");
  print_hand_over(job);
  fmt::print("{} ranks (dp {} x sp {}), shards of up to {} tokens, {} tokens a step, {:.3g} FLOP a token\n",
             job.ranks.topology.world_size, job.ranks.topology.dp_size(), job.ranks.topology.sp_size,
             StepScans::of(c, job.ranks.topology).shard_tokens, c.train.batch * c.data.seq_len,
             trainer.flops_per_token());
  if (!scaling.empty()) fmt::print("\n{}", scaling);
  return ExitCode::kDone;
}

}  // namespace baton
