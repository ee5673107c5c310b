#include "tests/reference/golden_file.h"

#include <utility>

#include "runtime/memory.h"

namespace baton::test {
namespace {

std::vector<double> read(const Hdf5File& file, const std::string& name) {
  const OwnedTensor x(file.shape(name), DType::kFloat64);
  file.read(name, x);
  return {x.tensor.as<double>(), x.tensor.as<double>() + x.tensor.numel()};
}

/// Every `stride`-th number: gates that are the same over channels are stored spread over them.
std::vector<double> every(const std::vector<double>& x, int64_t stride, size_t count) {
  std::vector<double> y;
  for (size_t i = 0; i < count; ++i) y.push_back(x[i * static_cast<size_t>(stride)]);
  return y;
}

}  // namespace

std::vector<std::string> golden_cases(const Hdf5File& file) {
  std::vector<std::string> names;
  for (const std::string& group : file.list("/")) {
    if (file.exists("/" + group + "/in")) {
      names.push_back("/" + group);
      continue;
    }
    for (const std::string& name : file.list("/" + group)) names.push_back("/" + group + "/" + name);
  }
  return names;
}

AttentionProblem read_golden_problem(const Hdf5File& file, const std::string& name) {
  const Shape q = file.shape(name + "/in/q"), v = file.shape(name + "/in/v");
  AttentionProblem p;
  p.shape = {q[0], q[1], q[2], q[3], v[3], parse_gate_kind(file.read_string(name, "gate"))};
  p.scale = file.read_double(name, "scale");
  const std::pair<const char*, std::vector<double>&> inputs[] = {
      {"q", p.q}, {"k", p.k}, {"v", p.v}, {"gk", p.gk}, {"gv", p.gv}, {"h0", p.h0}, {"dht", p.dht}, {"dout", p.dout}};
  for (const auto& [tensor, to] : inputs) {
    if (file.exists(name + "/in/" + tensor)) to = read(file, name + "/in/" + tensor);
  }
  const auto [B, T, H, K, V, gate, span, walk] = p.shape;
  if (gate == GateKind::kFixed) p.gk = every(p.gk, K, static_cast<size_t>(H));
  if (gate == GateKind::kScalar) p.gk = every(p.gk, K, static_cast<size_t>(B * T * H));
  for (int64_t start : file.read_ints(name, "boundaries")) {
    if (start == 0) continue;  // h0 enters there: no document start
    p.starts.resize(static_cast<size_t>(B * T));
    for (int64_t b = 0; b < B; ++b) p.starts[static_cast<size_t>(b * T + start)] = 1;
  }
  return p;
}

AttentionResult read_golden_result(const Hdf5File& file, const std::string& name) {
  AttentionResult result;
  for (const std::string& tensor : file.list(name + "/out")) result[tensor] = read(file, name + "/out/" + tensor);
  return result;
}

}  // namespace baton::test
