#include "launch/bench.h"

#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/shapes.h"

namespace baton {
namespace {

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream text(list);
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}

int64_t parse_count(const std::string& flag, const std::string& text) {
  int64_t count = 0;
  set_value(flag, text, count);
  CHECK_INPUT(count >= 1 && count <= int64_t{1} << 40, "{} = {}: must be at least 1", flag, text);
  return count;
}

/// The named shapes, all where none is named.
std::vector<NamedShape> parse_shapes(const std::string& list) {
  std::vector<NamedShape> found;
  std::vector<std::string> names;
  for (const NamedShape& shape : kBenchmarkShapes) names.emplace_back(shape.name);
  if (list.empty()) return {std::begin(kBenchmarkShapes), std::end(kBenchmarkShapes)};
  for (const std::string& word : words_of(list)) {
    const auto at = std::find(names.begin(), names.end(), word);
    CHECK_INPUT(at != names.end(), "--shape = {}: {} is no shape; they are {}", list, word, fmt::join(names, ", "));
    found.push_back(kBenchmarkShapes[at - names.begin()]);
  }
  return found;
}

bool same(const AttentionShape& a, const AttentionShape& b) {
  return a.B == b.B && a.T == b.T && a.H == b.H && a.K == b.K && a.V == b.V && a.gate == b.gate;
}

double ns_a_token(const AttentionShape& s, double seconds) { return 1e9 * seconds / static_cast<double>(s.B * s.T); }

nlohmann::json to_json(const BenchCase& c, const BenchResult& r) {
  const AttentionShape& s = c.shape;
  const auto part = [&](const BenchTime& t) {
    const double wall_s = median(t.wall_s);
    return nlohmann::json{{"us", 1e6 * wall_s},
                          {"ns_per_token", ns_a_token(s, wall_s)},
                          {"processor_ns_per_token", ns_a_token(s, median(t.processor_s))},
                          {"gflops", 1e-9 * t.flops / wall_s}};
  };
  return {{"shape", c.name},
          {"gate", to_string(s.gate)},
          {"B", s.B},
          {"T", s.T},
          {"H", s.H},
          {"K", s.K},
          {"V", s.V},
          {"forward", part(r.forward)},
          {"forward_backward", part(r.both)}};
}

constexpr const char* kHead =
    "{:<16}{:<9}{:>3}{:>8}{:>4}{:>5}{:>5} |{:>13}{:>10}{:>10}{:>9} |{:>13}{:>10}{:>10}{:>9}\n";

void print_head(DType dtype) {
  fmt::print("{}; median of the measurements; cpu: processor time of all threads\n", to_string(dtype));
  fmt::print(fmt::runtime(kHead), "shape", "gate", "B", "T", "H", "K", "V", "forward us", "ns/token", "cpu ns/t",
             "GFLOP/s", "with backward", "ns/token", "cpu ns/t", "GFLOP/s");
}

void print_case(const BenchCase& c, const BenchResult& r) {
  const AttentionShape& s = c.shape;
  fmt::print("{:<16}{:<9}{:>3}{:>8}{:>4}{:>5}{:>5}", c.name, to_string(s.gate), s.B, s.T, s.H, s.K, s.V);
  for (const BenchTime& t : {r.forward, r.both})
    fmt::print(" |{:>13.1f}{:>10.1f}{:>10.1f}{:>9.2f}", 1e6 * median(t.wall_s), ns_a_token(s, median(t.wall_s)),
               ns_a_token(s, median(t.processor_s)), 1e-9 * t.flops / median(t.wall_s));
  fmt::print("\n");
  std::fflush(stdout);
}

/// The cases, those that differ in T alone together.
std::vector<std::vector<BenchCase>> group_by_shape(const std::vector<BenchCase>& cases) {
  std::vector<std::vector<BenchCase>> groups;
  for (const BenchCase& c : cases) {
    const auto group = std::ranges::find_if(groups, [&](const std::vector<BenchCase>& g) {
      AttentionShape s = g[0].shape;
      s.T = c.shape.T;
      return same(s, c.shape);
    });
    if (group == groups.end()) {
      groups.push_back({c});
    } else {
      group->push_back(c);
    }
  }
  return groups;
}

/// Time a token of the longest case of a group against the shortest, each measurement against the one beside it. Cases
/// under kLong tokens are left out, since what a call costs at all shows in them.
void print_growth(const std::vector<BenchCase>& group, const std::vector<BenchResult>& results) {
  constexpr int64_t kLong = 4096;
  const size_t none = group.size();
  size_t shortest = none, longest = none;
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i].shape.T < kLong) continue;
    if (shortest == none || group[i].shape.T < group[shortest].shape.T) shortest = i;
    if (longest == none || group[i].shape.T > group[longest].shape.T) longest = i;
  }
  if (shortest == longest) return;
  const AttentionShape &a = group[shortest].shape, &b = group[longest].shape;
  const auto ratio = [&](BenchTime BenchResult::*part, std::vector<double> BenchTime::*time) {
    const std::vector<double>&from = results[shortest].*part.*time, &to = results[longest].*part.*time;
    std::vector<double> ratios;
    for (size_t i = 0; i < from.size(); ++i) ratios.push_back(ns_a_token(b, to[i]) / ns_a_token(a, from[i]));
    return median(ratios);
  };
  fmt::print("a token at T {} over T {} ({}, K {}, V {}):", b.T, a.T, to_string(a.gate), a.K, a.V);
  fmt::print(" forward {:.3f} (cpu {:.3f}), with backward {:.3f} (cpu {:.3f})\n",
             ratio(&BenchResult::forward, &BenchTime::wall_s), ratio(&BenchResult::forward, &BenchTime::processor_s),
             ratio(&BenchResult::both, &BenchTime::wall_s), ratio(&BenchResult::both, &BenchTime::processor_s));
}

}  // namespace

BenchOptions parse_bench_options(const Command& command) {
  const auto flag = [&](const char* name) { return command.flags.at(name); };
  CHECK_INPUT(command.positional.size() == 1 && command.positional[0] == "kernels",
              "baton bench measures kernels, as in baton bench kernels, not {}", fmt::join(command.positional, " "));
  BenchOptions o;
  CHECK_INPUT(flag("dtype") == "float32" || flag("dtype") == "float64", "--dtype = {}: must be float32 or float64",
              flag("dtype"));
  o.dtype = flag("dtype") == "float64" ? DType::kFloat64 : DType::kFloat32;
  o.repeat = parse_count("--repeat", flag("repeat"));
  set_value("--threads", flag("threads"), o.threads);
  CHECK_INPUT(o.threads >= 0 && o.threads <= 65536, "--threads = {}: must lie between 0 and 65536", o.threads);
  o.out = flag("out");
  for (const NamedShape& named : parse_shapes(flag("shape"))) {
    std::vector<int64_t> lengths;
    std::vector<GateKind> gates;
    for (const std::string& word : words_of(flag("tokens"))) lengths.push_back(parse_count("--tokens", word));
    for (const std::string& word : words_of(flag("gate"))) gates.push_back(parse_gate_kind(word));
    if (lengths.empty()) lengths = {named.shape.T};
    if (gates.empty()) gates = {named.shape.gate};
    for (GateKind gate : gates)
      for (int64_t T : lengths) {
        AttentionShape s = named.shape;
        s.gate = gate, s.T = T;
        const bool known =
            std::any_of(o.cases.begin(), o.cases.end(), [&](const BenchCase& c) { return same(c.shape, s); });
        if (!known) o.cases.push_back({named.name, s});
      }
  }
  return o;
}

ExitCode run_bench(const BenchOptions& options, Group& world) {
  const bool root = world.rank() == 0;
  if (options.threads > 0) omp_set_num_threads(static_cast<int>(options.threads));
  if (root) print_head(options.dtype);
  nlohmann::json list = nlohmann::json::array();
  for (const std::vector<BenchCase>& group : group_by_shape(options.cases)) {
    world.barrier();
    const std::vector<BenchResult> results = bench_operator(group, options);
    if (!root) continue;
    for (size_t i = 0; i < group.size(); ++i) {
      print_case(group[i], results[i]);
      list.push_back(to_json(group[i], results[i]));
    }
    print_growth(group, results);
  }
  together(world, [&] {
    if (!root) return;
    if (options.out.empty()) return;
    std::ofstream file(options.out);
    file << nlohmann::json{{"dtype", to_string(options.dtype)},
                           {"ranks", world.size()},
                           {"threads", omp_get_max_threads()},
                           {"cases", list}}
                .dump(2)
         << "\n";
    file.close();
    CHECK_INPUT(file.good(), "--out = {}: cannot be written", options.out);
  });
  return ExitCode::kDone;
}

}  // namespace baton
