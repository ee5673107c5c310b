// Measures one call, or a walk over many, by the host's clocks or by events of the device.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <deque>
#include <functional>
#include <memory>

#include "launch/bench.h"
#include "runtime/cuda.h"

namespace baton {
namespace {

/// Moments between pieces of a stream's work.
class StopWatch {
 public:
  StopWatch(const Stream& stream, size_t num_moments) : stream_(stream), wall_(num_moments), processor_(num_moments) {
    if (stream.device.type == DeviceType::kCpu) return;
    for (size_t i = 0; i < num_moments; ++i) events_.push_back(std::make_unique<cuda::Event>(/*timed=*/true));
  }
  /// The first mark finds an idle stream.
  void mark(size_t i) {
    if (!events_.empty()) {
      if (i == 0) synchronize(stream_);
      return events_[i]->record(stream_);
    }
    wall_[i] = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    processor_[i] = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  }
  /// What each of `calls` between two moments took.
  void record(size_t from, size_t to, size_t calls, BenchTime& time) {
    synchronize(stream_);
    const auto n = static_cast<double>(calls);
    const bool host = events_.empty();
    time.wall_s.push_back((host ? wall_[to] - wall_[from] : events_[to]->seconds_since(*events_[from])) / n);
    if (host) time.processor_s.push_back((processor_[to] - processor_[from]) / n);
  }

 private:
  Stream stream_;
  std::vector<double> wall_, processor_;
  std::vector<std::unique_ptr<cuda::Event>> events_;
};

BenchTime time_of(const BenchWork& work, double floor_s) {
  BenchTime time;
  time.work = work, time.floor_s = floor_s;
  return time;
}

/// The sets of one case, and what was measured on them.
class Measured {
 public:
  Measured(const AttentionShape& s, const BenchOptions& options, const Stream& stream)
      : stream_(stream), watch_(stream, 3) {
    const int64_t num_sets = std::max<int64_t>(1, options.tokens / (s.B * s.T));
    for (int64_t i = 0; i < num_sets; ++i) {
      const BenchProblem& set = sets_.emplace_back(s, options.dtype, stream);
      set.forward();  // touches the pages, loads the kernels
      set.backward();
    }
    const auto floor_s = [&](const BenchWork& work) {
      return std::max(work.bytes / options.bandwidth, work.operations / options.peak);
    };
    const BenchWork forward = forward_work(s, options.dtype), backward = backward_work(s, options.dtype);
    result_.forward = time_of(forward, floor_s(forward));
    result_.both = time_of({forward.bytes + backward.bytes, forward.operations + backward.operations},
                           floor_s(forward) + floor_s(backward));
    result_.scratch_bytes = sets_[0].scratch_bytes();
    if (options.stages) stages_ = sets_[0].stages();
    for (const BenchProblem::Stage& stage : stages_)
      result_.stages.push_back({stage.name, time_of(stage.work, floor_s(stage.work))});
    if (!options.graph) return;
    synchronize(stream);
    forward_graph_ = std::make_unique<cuda::Graph>(stream, [&] { sets_[0].forward(); });
    both_graph_ = std::make_unique<cuda::Graph>(stream, [&] {
      sets_[0].forward();
      sets_[0].backward();
    });
  }

  void measure() {
    watch_.mark(0);
    for (const BenchProblem& set : sets_) set.forward();
    watch_.mark(1);
    for (const BenchProblem& set : sets_) set.backward();
    watch_.mark(2);
    watch_.record(0, 1, sets_.size(), result_.forward);
    watch_.record(0, 2, sets_.size(), result_.both);
    for (size_t i = 0; i < stages_.size(); ++i) time_alone(stages_[i].run, result_.stages[i].time);
    if (forward_graph_ != nullptr) replay(*forward_graph_, result_.forward);
    if (both_graph_ != nullptr) replay(*both_graph_, result_.both);
  }

  BenchResult& result() { return result_; }

 private:
  void time_alone(const std::function<void()>& call, BenchTime& time) {
    watch_.mark(0);
    call();
    watch_.mark(1);
    watch_.record(0, 1, 1, time);
  }
  void replay(const cuda::Graph& graph, BenchTime& time) {
    BenchTime replayed;
    time_alone([&] { graph.launch(stream_); }, replayed);
    time.graph_s.push_back(replayed.wall_s[0]);
  }

  Stream stream_;
  StopWatch watch_;
  std::deque<BenchProblem> sets_;
  std::vector<BenchProblem::Stage> stages_;
  std::unique_ptr<cuda::Graph> forward_graph_, both_graph_;
  BenchResult result_;
};

}  // namespace

double median(std::vector<double> values) {
  CHECK(!values.empty(), "there is no median of no values");
  std::ranges::sort(values);
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

std::vector<BenchResult> measure_operator(const std::vector<AttentionShape>& cases, const BenchOptions& options,
                                          const Stream& stream) {
  std::deque<Measured> all;
  for (const AttentionShape& s : cases) all.emplace_back(s, options, stream);
  for (int64_t i = 0; i < options.repeat; ++i)
    for (Measured& m : all) m.measure();
  std::vector<BenchResult> results;
  for (Measured& m : all) results.push_back(std::move(m.result()));
  return results;
}

}  // namespace baton
