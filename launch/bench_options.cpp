#include <algorithm>
#include <cstdio>
#include <sstream>

#include "kernels/shapes.h"
#include "launch/bench.h"

namespace baton {
namespace {

constexpr int64_t kGpuTokens = 32768;  // of all sequences together, where --batch does not say
constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector,
                               GateKind::kBilinear};

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

double parse_positive(const std::string& flag, const std::string& text) {
  double value = 0;
  set_value(flag, text, value);
  CHECK_INPUT(value > 0, "{} = {}: must be above 0", flag, text);
  return value;
}

bool parse_switch(const std::string& flag, const std::string& text) {
  bool value = false;
  set_value(flag, text, value);
  return value;
}

/// The heads of "H4_K256_V512".
AttentionShape parse_heads(const std::string& word) {
  AttentionShape s;
  int used = 0;
  const int found = std::sscanf(word.c_str(), "H%ld_K%ld_V%ld%n", &s.H, &s.K, &s.V, &used);
  const bool whole = found == 3 && used == static_cast<int>(word.size());
  CHECK_INPUT(whole && std::min({s.H, s.K, s.V}) >= 1 && std::max({s.H, s.K, s.V}) <= 65536,
              "--shape = {}: must be heads as in H4_K256_V512, each number from 1 to 65536", word);
  return s;
}

DType parse_bench_dtype(const std::string& text, DeviceType device) {
  const bool cuda = device == DeviceType::kCuda;
  if (text.empty()) return cuda ? DType::kBFloat16 : DType::kFloat32;
  CHECK_INPUT(text == "float32" || text == (cuda ? "bfloat16" : "float64"), "--dtype = {}: must be {} on a {}", text,
              cuda ? "float32 or bfloat16" : "float32 or float64", cuda ? "GPU" : "CPU");
  return parse_dtype(text);
}

bool same(const AttentionShape& a, const AttentionShape& b) {
  return a.B == b.B && a.T == b.T && a.H == b.H && a.K == b.K && a.V == b.V && a.gate == b.gate;
}

void add_once(std::vector<AttentionShape>& list, const AttentionShape& s) {
  if (std::ranges::none_of(list, [&](const AttentionShape& known) { return same(known, s); })) list.push_back(s);
}

/// Heads and gates: the device's list, or where either is named, its product with all of the other.
std::vector<AttentionShape> parse_heads_and_gates(const std::string& shapes, const std::string& gates,
                                                  DeviceType device) {
  std::vector<AttentionShape> list(std::begin(kCpuBenchmarkShapes), std::end(kCpuBenchmarkShapes));
  if (device == DeviceType::kCuda) list.assign(std::begin(kGpuBenchmarkShapes), std::end(kGpuBenchmarkShapes));
  if (shapes.empty() && gates.empty()) return list;
  if (!shapes.empty()) list.clear();
  for (const std::string& word : words_of(shapes)) list.push_back(parse_heads(word));
  std::vector<GateKind> kinds;
  if (!gates.empty() && gates != "all")
    for (const std::string& word : words_of(gates)) kinds.push_back(parse_gate_kind(word));
  if (kinds.empty()) kinds.assign(std::begin(kGates), std::end(kGates));
  std::vector<AttentionShape> product;
  for (AttentionShape s : list)
    for (const GateKind gate : kinds) {
      s.gate = gate;
      add_once(product, s);
    }
  return product;
}

}  // namespace

std::string shape_name(const AttentionShape& s) { return fmt::format("H{}_K{}_V{}", s.H, s.K, s.V); }

BenchOptions parse_bench_options(const Command& command, Device device) {
  const auto flag = [&](const char* name) { return command.flags.at(name); };
  const std::string& what = command.positional.at(0);
  CHECK_INPUT(what == "kernels" || what == "comm", "baton bench {}: must be kernels or comm", what);
  const bool cuda = device.type == DeviceType::kCuda;
  BenchOptions o;
  o.comm = what == "comm";
  o.device = device;
  o.dtype = parse_bench_dtype(flag("dtype"), device.type);
  o.repeat = flag("repeat").empty() ? (cuda ? 20 : 5) : parse_count("--repeat", flag("repeat"));
  set_value("--threads", flag("threads"), o.threads);
  CHECK_INPUT(o.threads >= 0 && o.threads <= 65536, "--threads = {}: must lie between 0 and 65536", o.threads);
  o.tokens = cuda || o.comm ? 0 : 65536;
  o.graph = parse_switch("--graph", flag("graph")), o.stages = parse_switch("--stages", flag("stages"));
  CHECK_INPUT(cuda || !o.graph, "--graph = true: a CPU has no CUDA graphs");
  CHECK_INPUT(!o.comm || !o.stages, "--stages = true: baton bench kernels alone measures stages");
  o.bandwidth = 1e12 * parse_positive("--bandwidth", flag("bandwidth"));
  o.peak = 1e12 * parse_positive("--peak", flag("peak"));
  o.json = flag("json");
  const int64_t span = flag("span").empty() ? 0 : parse_count("--span", flag("span"));
  CHECK_INPUT(span % kChunk == 0, "--span = {}: must be a multiple of {}", span, kChunk);
  std::vector<int64_t> lengths;
  for (const std::string& word : words_of(flag("tokens"))) lengths.push_back(parse_count("--tokens", word));
  if (lengths.empty() && o.comm) lengths = {cuda ? 16384 : 4096};
  if (lengths.empty()) lengths = cuda ? std::vector<int64_t>{2048, 8192, 32768} : std::vector<int64_t>{4096, 65536};
  for (AttentionShape s : parse_heads_and_gates(flag("shape"), flag("gate"), device.type))
    for (const int64_t T : lengths) {
      s.T = T;
      s.B = cuda && !o.comm ? std::max<int64_t>(1, kGpuTokens / T) : 1;
      if (!flag("batch").empty()) s.B = parse_count("--batch", flag("batch"));
      choose_spans(s, o.dtype);
      if (span > 0 && s.span > kChunk) s.span = s.walk = span;
      add_once(o.cases, s);
    }
  return o;
}

}  // namespace baton
