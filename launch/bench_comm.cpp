// baton bench comm: for each case, medians of the slowest rank,
//   message      the state between neighbours as the group sends it: half of there and back again; defaults: over the
//                group of gradients, whose messages take as many thread blocks as NCCL likes
//   hand-over    the same by a chain scan that composes nothing
//   composition  of two carries; advance and own carry: of a shard's spans
//   scan         one by each strategy with all that it composes: half of a forward and the reversed one after it
//   operator     a layer alone, in the stages that a hand-over needs, and with each strategy's hand-over; in brackets
//                what is more than alone, and the cost model's figure. Nothing else runs while a state travels. whole:
//                in a chain whose rank begins the operator when its state is there, as LASP does (arXiv 2404.02882)
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>

#include "launch/bench.h"
#include "launch/group_timer.h"
#include "launch/scan_choice.h"
#include "model/carry.h"
#include "runtime/cuda.h"
#include "runtime/log.h"

namespace baton {
namespace {

constexpr int kRounds = 20, kLayers = 24;

/// One layer's operator on a rank of several.
class SharedProblem : public BenchProblem {
 public:
  SharedProblem(const AttentionShape& s, DType dtype, int num_ranks, const Stream& stream)
      : BenchProblem(s, dtype, stream) {
    OwnedTensor all({num_ranks, s.B}, DType::kInt64);
    std::fill_n(all.tensor.as<int64_t>(), all.tensor.numel(), s.T);
    fixed_.tokens = make(all.tensor.shape, DType::kInt64), fixed_.scratch = make({s.B, s.H, s.K}, h0_.dtype);
    copy(all, fixed_.tokens, stream);
    kept_ = make(s.state(), h0_.dtype);
    for (Tensor& carry : carries_) carry = make({carry_numel(s)}, h0_.dtype);
    synchronize(stream);
  }

  /// Layers of a model: before backward a layer's states are made again.
  void layers(int num, bool with_backward) const {
    for (int i = 0; i < num; ++i) forward();
    for (int i = 0; with_backward && i < num; ++i) {
      attention_states(in_, chunks_, {}, {}, stream_);
      backward();
    }
  }
  void layers_by(StateScan& scan, bool whole, int num, bool with_backward) const {
    for (int i = 0; i < num; ++i) whole ? whole_forward(scan) : forward_by(scan);
    for (int i = 0; with_backward && i < num; ++i) whole ? whole_backward(scan) : backward_by(scan);
    scan.settle();
  }

  /// A scan forward and one reversed, with the operator's compositions or none.
  void scans(StateScan& scan, bool composes) const {
    const auto nothing = [](const Tensor&, const Tensor&) {};
    for (const Direction direction : {Direction::kForward, Direction::kReversed}) {
      ShardCarry carry = carry_of(direction);
      if (!composes) carry.advance = nothing;
      hand_on(scan, direction, carry);
    }
    scan.settle();
  }
  /// Scans repeat on the same spans, which would grow without bound.
  void prepare_scans() const {
    carry_forward(in_, chunks_, stream_);  // decays
    for (const Tensor& x : {h0_, ht_, dht_, dh0_, chunks_.state, dchunks_.state}) set_zero(x, stream_);
    for (const Tensor& carry : carries_) set_zero(carry, stream_);
  }
  void compose() const {
    carry_of(Direction::kForward).compose({carries_[0], {0, 1}}, {carries_[1], {1, 2}}, carries_[0]);
  }
  void advance() const { advance_forward(in_, chunks_, h0_, ht_, stream_); }
  void own() const { carry_of(Direction::kForward).own(carries_[0]); }
  void message(Group& group) const { send_between(group, 0, Messages::kThereAndBack, ht_, h0_, stream_); }

  ScanLayer scan_layer() const {
    return {h0_.bytes(), carries_[0].bytes(), in_.shape.num_spans(), in_.shape.B * in_.shape.H};
  }

 private:
  ShardCarry carry_of(Direction direction) const {
    return direction == Direction::kForward ? forward_carry(in_, chunks_, fixed_, stream_)
                                            : backward_carry(in_, chunks_, dchunks_, fixed_, stream_);
  }
  void forward_by(StateScan& scan) const {
    carry_forward(in_, chunks_, stream_);
    hand_on(scan, Direction::kForward, carry_of(Direction::kForward));
    output_forward(in_, chunks_, o_, stream_);
  }
  void backward_by(StateScan& scan) const {
    carry_forward(in_, chunks_, stream_);
    advance_forward(in_, chunks_, h0_, kept_, stream_);
    carry_backward(in_, chunks_, dout_, dchunks_, stream_);
    hand_on(scan, Direction::kReversed, carry_of(Direction::kReversed));
    attention_gradients(in_, chunks_, dchunks_, dout_, out_, stream_);
  }
  void hand_on(StateScan& scan, Direction direction, const ShardCarry& carry) const {
    const bool forward = direction == Direction::kForward;
    scan.begin(direction, forward ? h0_ : dht_, forward ? ht_ : dh0_, carry, stream_);
    scan.finish(stream_);
  }
  void whole_forward(StateScan& scan) const {
    hand_on(scan, Direction::kForward, {[this](const Tensor& entering, const Tensor& leaving) {
              attention_forward(in_, chunks_, entering, leaving, o_, stream_);
            }});
  }
  void whole_backward(StateScan& scan) const {
    attention_states(in_, chunks_, h0_, kept_, stream_);
    hand_on(scan, Direction::kReversed, {[this](const Tensor& entering, const Tensor& leaving) {
              attention_backward(in_, chunks_, dchunks_, h0_, dout_, entering, leaving, out_, stream_);
            }});
  }

  FixedDecays fixed_;
  Tensor kept_, carries_[2];
};

/// Measures one case and reports it: a table on rank 0, and JSON.
class CommCase {
 public:
  CommCase(const AttentionShape& s, const BenchOptions& options, const Ranks& ranks)
      : options_(options),
        ranks_(ranks),
        timer_(*ranks.sp, ranks.stream, options.repeat),
        problem_(s, options.dtype, ranks.sp->size(), ranks.stream),
        number_(Precision::of(options.dtype).accum) {
    for (const ScanStrategy strategy : kScanStrategies) {
      const int64_t numel = StateScan::scratch_numel(strategy, *ranks.sp, carry_numel(s), s.B * s.H);
      scratch_.emplace_back(Shape{numel}, number_, ranks.stream.device);
      scans_.push_back(std::make_unique<StateScan>(*ranks.sp, strategy, scratch_.back()));
    }
    const ScanLayer layer = problem_.scan_layer();
    json_ = describe_case(s);
    json_.update({{"state_bytes", layer.state_bytes}, {"carry_bytes", layer.carry_bytes}, {"spans", layer.spans}});
    say(fmt::format("\n{} {}, {} x {} tokens a rank: state {} bytes, carry {} bytes, {} spans\n", shape_name(s),
                    to_string(s.gate), s.B, s.T, layer.state_bytes, layer.carry_bytes, layer.spans));
    measure_pieces();
    measure_operator(measure_scan(ranks, s, number_));
  }

  const nlohmann::json& json() const { return json_; }

 private:
  void say(const std::string& text) const {
    if (ranks_.topology.world_rank == 0) fmt::print("{}", text);
  }

  /// Seconds of one of the `parts` of a call, eager, then as a CUDA graph where asked for.
  std::vector<double> seconds_of(double parts, const std::function<void()>& call) {
    std::vector<double> seconds{timer_.median_of(call) / parts};
    if (!options_.graph) return seconds;
    seconds.push_back(timer_.device_median_of(call) / parts);
    return seconds;
  }

  void measure_pieces() {
    problem_.prepare_scans();
    say(fmt::format("  {:<24}{:>12}{:>12}\n", "", "us", options_.graph ? "graph us" : ""));
    const auto row = [&](const std::string& name, double parts, const std::function<void()>& once) {
      const auto seconds = seconds_of(parts * kRounds, [&] {
        for (int i = 0; i < kRounds; ++i) once();
      });
      std::string line = fmt::format("  {:<24}", name);
      for (size_t i = 0; i < seconds.size(); ++i) {
        line += fmt::format("{:>12.2f}", 1e6 * seconds[i]);
        json_[name][kTimes[i]] = 1e6 * seconds[i];
      }
      say(line + "\n");
    };
    const int hops = ranks_.sp->size() - 1;
    row("message", 2, [&] { problem_.message(*ranks_.sp); });
    row("message, defaults", 2, [&] { problem_.message(*ranks_.world); });
    row("hand-over", 2 * hops, [&] { problem_.scans(*scans_[0], /*composes=*/false); });
    row("composition", 1, [&] { problem_.compose(); });
    row("own carry", 1, [&] { problem_.own(); });
    row("advance", 1, [&] { problem_.advance(); });
    for (size_t i = 0; i < scans_.size(); ++i)
      row(fmt::format("scan, {}", to_string(kScanStrategies[i])), 2, [&] { problem_.scans(*scans_[i], true); });
  }

  /// A line a way to run, microseconds a layer: forward, and with backward, of one layer and of kLayers in a row.
  void measure_operator(const ScanMachine& machine) {
    std::string head = fmt::format("  {:<24}", "operator, us a layer");
    for (const char* column : kColumns) head += fmt::format("{:>21}", column);
    say(head + "\n");
    std::vector<std::vector<double>> alone;
    const auto lines = [&](const std::string& name, double model, const std::function<void(int, bool)>& run) {
      std::vector<std::vector<double>> all;
      for (const int layers : {1, kLayers})
        for (const bool both : {false, true}) all.push_back(seconds_of(layers, [&] { run(layers, both); }));
      if (alone.empty()) alone = all;
      for (size_t t = 0; t < all[0].size(); ++t) {
        std::string line = fmt::format("  {:<24}", t == 0 ? name : name + ", graph");
        for (size_t i = 0; i < all.size(); ++i) {
          line += fmt::format("{:>10.1f} ({:>+8.1f})", 1e6 * all[i][t], 1e6 * (all[i][t] - alone[i][t]));
          json_["operator"][name][kColumns[i]][kTimes[t]] = 1e6 * all[i][t];
        }
        say(line + (model > 0 ? fmt::format("  model {:+.1f}", 1e6 * model) : "") + "\n");
      }
      if (model > 0) json_["operator"][name]["model us"] = 1e6 * model;
    };
    const auto by = [&](StateScan& scan, bool whole) {
      return [this, &scan, whole](int num, bool both) { problem_.layers_by(scan, whole, num, both); };
    };
    lines("alone", 0, [&](int num, bool both) { problem_.layers(num, both); });
    const auto one = make_local_groups(1);
    StateScan nothing_sent(*one[0], ScanStrategy::kChain);
    lines("stages", 0, by(nothing_sent, false));
    const std::vector<ScanLayer> layers(kLayers, problem_.scan_layer());
    for (size_t i = 0; i < scans_.size(); ++i) {
      const double exposed = exposed_in_step(kScanStrategies[i], ranks_.sp->size(), layers, machine, 1, 0);
      lines(to_string(kScanStrategies[i]), exposed / kLayers, by(*scans_[i], false));
    }
    lines("whole", 0, by(*scans_[0], true));
    json_["plan"] = {{"latency", 1e6 * machine.between.latency_s},
                     {"bandwidth", 1e-9 * machine.between.bandwidth},
                     {"early", machine.early},
                     {"both_ways", machine.both_ways},
                     {"compose_latency", 1e6 * machine.compose.latency_s},
                     {"compose_bandwidth", 1e-9 * machine.compose.bandwidth}};
    say(fmt::format("  baton plan {}\n", plan_keys(machine)));
  }

  static constexpr const char* kTimes[] = {"us", "graph us"};
  static constexpr const char* kColumns[] = {"forward", "with backward", "24 forward", "24 with backward"};

  const BenchOptions& options_;
  const Ranks& ranks_;
  GroupTimer timer_;
  SharedProblem problem_;
  DType number_;
  std::deque<OwnedTensor> scratch_;
  std::vector<std::unique_ptr<StateScan>> scans_;
  nlohmann::json json_;
};

}  // namespace

ExitCode run_comm_bench(const BenchOptions& options, const Ranks& ranks) {
  std::string lines = describe_bench(options, *ranks.world);
  if (ranks.topology.world_rank == 0) fmt::print("hand-over, medians of the slowest rank: {}", lines);
  lines += bench_sums(options, ranks);
  for (const AttentionShape& s : options.cases) lines += CommCase(s, options, ranks).json().dump() + "\n";
  write_bench(options, *ranks.world, lines);
  return ExitCode::kDone;
}

}  // namespace baton
