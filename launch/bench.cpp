#include "launch/bench.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/cuda.h"

namespace baton {
namespace {

double ns_a_token(const AttentionShape& s, double seconds) { return 1e9 * seconds / static_cast<double>(s.B * s.T); }

struct Figure {
  const char* name;
  double value;
};

/// What is known of a time: columns of the table and fields of the JSON file alike.
std::vector<Figure> figures(const AttentionShape& s, const BenchTime& t) {
  const double wall_s = median(t.wall_s);
  std::vector<Figure> all{{"us", 1e6 * wall_s},
                          {"ns/token", ns_a_token(s, wall_s)},
                          {"GB/s", 1e-9 * t.work.bytes / wall_s},
                          {"TFLOP/s", 1e-12 * t.work.operations / wall_s}};
  if (t.processor_s.empty()) {
    all.push_back({"floor %", 100 * t.floor_s / wall_s});
  } else {
    all.push_back({"cpu ns/token", ns_a_token(s, median(t.processor_s))});
  }
  if (t.graph_s.empty()) return all;
  all.push_back({"graph us", 1e6 * median(t.graph_s)});
  all.push_back({"launch us", 1e6 * (wall_s - median(t.graph_s))});
  return all;
}

nlohmann::json to_json(const std::vector<Figure>& list) {
  nlohmann::json json;
  for (const Figure& figure : list) json[figure.name] = figure.value;
  return json;
}

nlohmann::json to_json(const AttentionShape& s, const BenchResult& r) {
  nlohmann::json json = describe_case(s);
  json.update({{"span", s.span},
               {"scratch_MiB", static_cast<double>(r.scratch_bytes) / (1 << 20)},
               {"forward", to_json(figures(s, r.forward))},
               {"forward_backward", to_json(figures(s, r.both))}});
  for (const BenchResult::Stage& stage : r.stages) json["stages"][stage.name] = to_json(figures(s, stage.time));
  return json;
}

int width_of(const Figure& f) { return std::max(9, static_cast<int>(std::string_view(f.name).size()) + 1); }

void print_figures(const std::vector<Figure>& list) {
  fmt::print(" |");
  for (const Figure& f : list) {
    const double size = std::abs(f.value);
    fmt::print("{:>{}.{}f}", f.value, width_of(f), size < 1 ? 4 : size < 10 ? 3 : size < 1000 ? 1 : 0);
  }
}

constexpr const char* kRow = "{:<16}{:<9}{:>4}{:>8}{:>7}";

/// Of the columns of this case, which are those of all.
void print_head(const AttentionShape& s, const BenchResult& r) {
  fmt::print(fmt::runtime(kRow), "heads", "gate", "B", "T", "span");
  for (const BenchTime* time : {&r.forward, &r.both}) {
    fmt::print(" |");
    for (const Figure& f : figures(s, *time)) fmt::print("{:>{}}", f.name, width_of(f));
  }
  fmt::print(" |{:>12}\n", "scratch MiB");
}

void print_case(const AttentionShape& s, const BenchResult& r) {
  fmt::print(fmt::runtime(kRow), shape_name(s), to_string(s.gate), s.B, s.T, s.span);
  print_figures(figures(s, r.forward));
  print_figures(figures(s, r.both));
  fmt::print(" |{:>12.1f}\n", static_cast<double>(r.scratch_bytes) / (1 << 20));
  for (const BenchResult::Stage& stage : r.stages) {
    fmt::print("  {:<42}", stage.name);
    print_figures(figures(s, stage.time));
    fmt::print("\n");
  }
  std::fflush(stdout);
}

/// The cases, those that differ in B and T alone together.
std::vector<std::vector<AttentionShape>> group_by_heads(const std::vector<AttentionShape>& cases) {
  std::vector<std::vector<AttentionShape>> groups;
  for (const AttentionShape& s : cases) {
    const auto group = std::ranges::find_if(groups, [&](const std::vector<AttentionShape>& g) {
      return g[0].H == s.H && g[0].K == s.K && g[0].V == s.V && g[0].gate == s.gate;
    });
    if (group == groups.end()) {
      groups.push_back({s});
    } else {
      group->push_back(s);
    }
  }
  return groups;
}

/// Time a token of the longest case of a group against the shortest, each measurement against the one beside it. Cases
/// under kLong tokens are left out, since what a call costs at all shows in them.
void print_growth(const std::vector<AttentionShape>& group, const std::vector<BenchResult>& results) {
  constexpr int64_t kLong = 4096;
  const size_t none = group.size();
  size_t shortest = none, longest = none;
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i].T < kLong) continue;
    if (shortest == none || group[i].T < group[shortest].T) shortest = i;
    if (longest == none || group[i].T > group[longest].T) longest = i;
  }
  if (shortest == longest) return;
  const AttentionShape &a = group[shortest], &b = group[longest];
  const auto ratio = [&](BenchTime BenchResult::*part, std::vector<double> BenchTime::*time) {
    const std::vector<double>&from = results[shortest].*part.*time, &to = results[longest].*part.*time;
    std::vector<double> ratios;
    for (size_t i = 0; i < from.size(); ++i) ratios.push_back(ns_a_token(b, to[i]) / ns_a_token(a, from[i]));
    return median(ratios);
  };
  fmt::print("  a token at T {} over T {}:", b.T, a.T);
  const char* names[] = {"forward", "with backward"};
  BenchTime BenchResult::*parts[] = {&BenchResult::forward, &BenchResult::both};
  for (size_t i = 0; i < 2; ++i) {
    fmt::print("{} {} {:.3f}", i > 0 ? "," : "", names[i], ratio(parts[i], &BenchTime::wall_s));
    if (!results[shortest].forward.processor_s.empty())
      fmt::print(" (cpu {:.3f})", ratio(parts[i], &BenchTime::processor_s));
  }
  fmt::print("\n");
}

}  // namespace

nlohmann::json describe_case(const AttentionShape& s) {
  return {{"case", "baton"}, {"gate", to_string(s.gate)}, {"B", s.B}, {"T", s.T}, {"H", s.H}, {"K", s.K}, {"V", s.V}};
}

std::string describe_bench(const BenchOptions& options, const Group& world) {
  nlohmann::json json{{"dtype", to_string(options.dtype)}, {"ranks", world.size()}, {"repeat", options.repeat}};
  if (options.device.type == DeviceType::kCpu) {
    json["threads"] = omp_get_max_threads();
  } else {
    json["gpu"] = cuda::device_name(options.device.index);
    json["bandwidth_TB/s"] = 1e-12 * options.bandwidth, json["peak_TFLOP/s"] = 1e-12 * options.peak;
  }
  return json.dump() + "\n";
}

void write_bench(const BenchOptions& options, Group& world, const std::string& lines) {
  together(world, [&] {
    if (world.rank() != 0 || options.json.empty()) return;
    std::ofstream file(options.json);
    file << lines;
    file.close();
    CHECK_INPUT(file.good(), "--json = {}: cannot be written", options.json);
  });
}

ExitCode run_bench(const BenchOptions& options, Group& world) {
  const bool root = world.rank() == 0, cuda = options.device.type == DeviceType::kCuda;
  std::unique_ptr<cuda::OwnedStream> owned;
  if (cuda) owned = std::make_unique<cuda::OwnedStream>(options.device.index, false);
  const Stream stream = cuda ? owned->stream() : Stream{};
  std::string lines = describe_bench(options, world);
  if (root) fmt::print("attention, forward | forward and backward, medians: {}", lines);
  bool head = root;
  for (const std::vector<AttentionShape>& group : group_by_heads(options.cases)) {
    world.barrier();
    const std::vector<BenchResult> results = measure_operator(group, options, stream);
    if (!root) continue;
    if (head) print_head(group[0], results[0]);
    head = false;
    for (size_t i = 0; i < group.size(); ++i) {
      print_case(group[i], results[i]);
      lines += to_json(group[i], results[i]).dump() + "\n";
    }
    print_growth(group, results);
  }
  write_bench(options, world, lines);
  return ExitCode::kDone;
}

}  // namespace baton
