#include "launch/scaling_plan.h"

#include <algorithm>
#include <bit>

namespace baton {
ScalingPlan ScalingPlan::of(const Config& config, const Topology& topology, const ParameterTable& table) {
  require_measured("plan.step_s", config.plan.step_s, "baton train on one rank");
  ScalingPlan p;
  p.step_s = config.plan.step_s;
  p.scans = StepScans::of(config, topology);
  p.machine = planned_machine(config);
  p.parallel_sp = config.parallel.sp;
  p.sum_bandwidth = 1e9 * config.plan.sum_bandwidth;
  p.sum_exposed = config.plan.sum_exposed;
  // A forward is one unit of work, a backward two. Exact windows run forward again but for the last.
  const auto W = static_cast<double>(p.scans.windows);
  const double units = config.train.window_mode == "exact" ? 4 * W - 1 : 3 * W;
  p.last_backward_s = p.step_s / static_cast<double>(p.scans.micro_batches) * 2 / units;
  const int64_t number_bytes = size_of(Precision::of(parse_dtype(config.run.dtype)).accum);
  int64_t end = table.flat_numel();
  for (int64_t l = config.model.layers - 1; l >= -1; --l) {
    const int64_t first = l < 0 ? 0 : table.first_element(fmt::format("model.layers.{}.", l));
    const int64_t bytes = (end - first) * number_bytes;
    if (!GradientReduction::is_bucket(first, bytes)) continue;
    p.bucket_bytes.push_back(bytes);
    end = first;
  }
  return p;
}

double ScalingPlan::gradients_s(int64_t num_ranks) const {
  if (num_ranks == 1) return 0;
  const auto P = static_cast<double>(num_ranks);
  double bandwidth = sum_bandwidth > 0 ? sum_bandwidth : machine.inside.bandwidth;
  if (num_ranks > machine.ranks_per_node)  // all ranks of a node send at once
    bandwidth = std::min(bandwidth, static_cast<double>(machine.ranks_per_node) * machine.between.bandwidth);
  const double latency =
      2 * std::bit_width(static_cast<uint64_t>(num_ranks - 1)) * machine.slowest(num_ranks).latency_s;
  double all = 0, last = 0;
  for (const int64_t bytes : bucket_bytes)
    all += last = latency + 2 * (P - 1) / P * static_cast<double>(bytes) / bandwidth;
  if (machine.sends_wait) return all;
  const double behind = std::max(last, all - last_backward_s);
  return behind + sum_exposed * (all - behind);
}

std::string scaling_table(const ScalingPlan& plan, const Config& config) {
  const StepScans& s = plan.scans;
  std::string text = fmt::format(
      "predicted from {} s a step of one rank with a shard of {} tokens; every rank keeps its work (* costs least)\n"
      "{:>8}{:>7}{:>7}{:>12}  {:<12}{:>14}{:>14}{:>12}{:>12}{:>14}\n",
      value_text(plan.step_s), s.shard_tokens, "ranks", "sp", "nodes", "sequence", "strategy", "hand-over ms",
      "gradients ms", "step ms", "efficiency", "tokens/s");
  for (const int64_t ranks : parse_count_list("plan.ranks", config.plan.ranks)) {
    const int64_t sp = plan.sp_size(ranks), sequence = s.windows * s.shard_tokens * sp;
    CHECK_INPUT(ranks % sp == 0, "plan.ranks = {}: must be multiples of parallel.sp = {}", config.plan.ranks, sp);
    const ScanStrategy cheapest = cheapest_strategy(sp, s.layers, plan.machine);
    for (const ScanStrategy strategy : kScanStrategies) {
      if (sp == 1 && strategy != cheapest) continue;
      const double hand_over = plan.hand_over_s(ranks, strategy), gradients = plan.gradients_s(ranks);
      const double step = plan.step_s + hand_over + gradients;
      const double tokens = static_cast<double>(s.micro_batch * s.micro_batches * sequence * (ranks / sp));
      text += fmt::format("{:>8}{:>7}{:>7}{:>12}  {:<12}{:>14.3f}{:>14.3f}{:>12.2f}{:>11.1f}%{:>14.0f}\n", ranks, sp,
                          (ranks - 1) / plan.machine.ranks_per_node + 1, sequence,
                          fmt::format("{}{}", to_string(strategy), strategy == cheapest ? " *" : ""), 1e3 * hand_over,
                          1e3 * gradients, 1e3 * step, 100 * plan.step_s / step, tokens / step);
    }
  }
  return text;
}

}  // namespace baton
