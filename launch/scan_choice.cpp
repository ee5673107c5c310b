#include "launch/scan_choice.h"

#include <algorithm>

#include "launch/group_timer.h"
#include "model/carry.h"

namespace baton {
StepScans StepScans::of(const Config& config, const Topology& topology) {
  const int64_t per_dp = config.train.batch / topology.dp_size(), T_total = config.data.seq_len;
  StepScans s;
  s.micro_batch = config.train.micro_batch > 0 ? config.train.micro_batch : per_dp;
  s.micro_batches = per_dp / s.micro_batch;
  const int64_t window = std::min(config.train.window > 0 ? config.train.window : T_total, T_total);
  s.shard_tokens = WindowPlan::capacity(T_total, window, topology.sp_size);
  s.windows = WindowPlan{T_total, window, topology.sp_size, 0}.num_windows();
  const int64_t between_windows = (s.windows - 1) * (config.train.window_mode == "exact" ? 2 : 1);
  s.wraps = s.micro_batches * (between_windows + (config.in_stream_order() ? 1 : 0));  // one to the next step
  const Precision precision = Precision::of(parse_dtype(config.run.dtype));
  for (int64_t l = 0; l < config.model.layers; ++l) {
    const AttentionShape shape =
        LayerDims::of(config.model, l).attention(s.micro_batch, s.shard_tokens, precision.compute);
    s.layers.push_back({shape.state().numel() * size_of(precision.accum), carry_numel(shape) * size_of(precision.accum),
                        shape.num_spans(), shape.B * shape.H});
  }
  return s;
}

void send_between(Group& group, int first, Messages messages, const Tensor& out, const Tensor& in,
                  const Stream& stream) {
  const int rank = group.rank();
  const bool lower = (rank - first) % 2 == 0;
  const int peer = lower ? rank + 1 : rank - 1;
  if (rank < first || peer >= group.size()) return;
  const Transfer send{Transfer::Kind::kSend, out, peer}, recv{Transfer::Kind::kRecv, in, peer};
  if (messages == Messages::kBothWays) return group.exchange({send, recv}, stream)->wait();
  group.exchange({lower ? send : recv}, stream)->wait();
  if (messages == Messages::kThereAndBack) group.exchange({lower ? recv : send}, stream)->wait();
}

ScanMachine measure_scan(const Ranks& ranks, const AttentionShape& shape, DType number) {
  constexpr int kRepeats = 9, kCalls = 8;
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  const Stream& stream = ranks.stream;
  GroupTimer timer(*ranks.world, stream, kRepeats);
  // In a step the host runs ahead, so that launches do not count.
  const auto seconds_of = [&](const std::function<void()>& call) {
    return timer.device_median_of([&] {
      for (int i = 0; i < kCalls; ++i) call();
    }) / kCalls;
  };
  // A call of one number shows the latency; what a shard's spans hold shows what memory gives.
  const int64_t numel = carry_numel(shape), bytes = numel * size_of(number);
  AttentionShape one = shape, spans = shape;
  one.B = one.H = one.K = one.V = 1;
  spans.B *= std::clamp<int64_t>(kMostBytes / bytes, 1, shape.num_spans());
  const OwnedTensor out({carry_numel(spans)}, number, stream.device), in({carry_numel(spans)}, number, stream.device),
      tokens({ranks.sp->size() * spans.B}, DType::kInt64, stream.device),
      decays({spans.B * shape.H * shape.K}, number, stream.device);
  for (const Tensor& x : {out.tensor, in.tensor, tokens.tensor}) set_zero(x, stream);
  const auto message_seconds = [&](Messages messages, int64_t n) {
    const Tensor from = out.tensor.rows(0, n), to = in.tensor.rows(0, n);
    double most = 0;
    for (const int first : {0, 1})
      if (first + 1 < ranks.sp->size())
        most = std::max(most, seconds_of([&] { send_between(*ranks.sp, first, messages, from, to, stream); }));
    return messages == Messages::kThereAndBack ? most / 2 : most;
  };
  const auto compose_seconds = [&](const AttentionShape& s) {
    const int64_t P = ranks.sp->size();
    const FixedDecays fixed{tokens.tensor.rows(0, P * s.B).view({P, s.B}),
                            decays.tensor.rows(0, s.B * s.H * s.K).view({s.B, s.H, s.K})};
    AttentionInputs inputs;
    inputs.shape = s;
    const AttentionChunks none;  // a composition needs no spans of its own
    const ShardCarry carry = forward_carry(inputs, none, fixed, stream);
    const int64_t n = carry_numel(s);
    return seconds_of([&] {
      carry.compose({out.tensor.rows(0, n), {0, 1}}, {in.tensor.rows(0, n), {1, 2}}, out.tensor.rows(0, n));
    });
  };
  const auto link = [](double least_s, double most_s, int64_t most_bytes) {
    return Link{least_s, static_cast<double>(most_bytes) / std::max(most_s - least_s, 1e-9)};
  };
  ScanMachine machine;
  const double least = message_seconds(Messages::kThereAndBack, 1),
               there = message_seconds(Messages::kThereAndBack, numel);
  machine.inside = machine.between = link(least, there, bytes);  // the slowest is meant
  const auto times_its_bytes = [&](double seconds) { return (seconds - least) / std::max(there - least, 1e-9); };
  machine.both_ways = std::max(1.0, times_its_bytes(message_seconds(Messages::kBothWays, numel)));
  machine.sends_wait = stream.device.type == DeviceType::kCpu;
  if (!machine.sends_wait) {  // of several one after another the first alone is not early
    const double in_a_row = kCalls * message_seconds(Messages::kOneWay, numel);
    machine.early = std::clamp(times_its_bytes((in_a_row - there) / (kCalls - 1)), 0.0, 1.0);
  }
  machine.ranks_per_node = ranks.sp->ranks_per_node();
  const double least_composition = compose_seconds(one), composition = compose_seconds(spans);
  machine.compose = link(least_composition, composition, 3 * out.tensor.bytes());
  return machine;
}

std::string plan_keys(const ScanMachine& machine) {
  return fmt::format(
      "--plan.latency {:.3g} --plan.bandwidth {:.3g} --plan.early {:.2f} --plan.both_ways {:.2f} "
      "--plan.compose_latency {:.3g} --plan.compose_bandwidth {:.3g}",
      1e6 * machine.between.latency_s, 1e-9 * machine.between.bandwidth, machine.early, machine.both_ways,
      1e6 * machine.compose.latency_s, 1e-9 * machine.compose.bandwidth);
}

void require_measured(const char* key, double value, const char* by) {
  CHECK_INPUT(value > 0, "{} = {}: must be above 0 where plan.ranks is given or parallel.scan = auto; {} measures it",
              key, value_text(value), by);
}

ScanMachine planned_machine(const Config& config) {
  constexpr double kMicro = 1e-6, kGiga = 1e9;
  const PlanConfig& p = config.plan;
  require_measured("plan.bandwidth", p.bandwidth, "baton bench comm");
  require_measured("plan.compose_bandwidth", p.compose_bandwidth, "baton bench comm");
  ScanMachine machine;
  machine.inside = machine.between = {p.latency * kMicro, p.bandwidth * kGiga};
  if (p.node_bandwidth > 0) machine.inside = {p.node_latency * kMicro, p.node_bandwidth * kGiga};
  machine.ranks_per_node = p.ranks_per_node;
  machine.compose = {p.compose_latency * kMicro, p.compose_bandwidth * kGiga};
  machine.sends_wait = !config.may_use_gpu();
  machine.early = machine.sends_wait ? 1 : p.early;
  machine.both_ways = p.both_ways;
  return machine;
}

ScanStrategy choose_scan(const Config& config, const Ranks& ranks, bool planning) {
  const int P = ranks.topology.sp_size;
  if (P == 1) return ScanStrategy::kChain;
  const StepScans scans = StepScans::of(config, ranks.topology);
  ScanMachine machine;
  if (planning) {
    together(*ranks.world, [&] { machine = planned_machine(config); });
  } else {
    const Precision precision = Precision::of(parse_dtype(config.run.dtype));
    int64_t largest = 0;
    for (int64_t l = 0; l < config.model.layers; ++l)
      if (scans.layers[l].carry_bytes > scans.layers[largest].carry_bytes) largest = l;
    const LayerDims dims = LayerDims::of(config.model, largest);
    machine =
        measure_scan(ranks, dims.attention(scans.micro_batch, scans.shard_tokens, precision.compute), precision.accum);
  }
  const ScanStrategy chosen = cheapest_strategy(P, scans.layers, machine);
  if (ranks.topology.world_rank != 0) return chosen;
  std::string estimates;
  for (const ScanStrategy strategy : kScanStrategies)
    estimates += fmt::format(" {} {:.3g} ms,", to_string(strategy), 1e3 * scans.exposed(strategy, P, machine));
  estimates.pop_back();
  fmt::print("parallel.scan = auto: {}. Estimated for a step:{}, with {}\n", to_string(chosen), estimates,
             plan_keys(machine));
  return chosen;
}

}  // namespace baton
