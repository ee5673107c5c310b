#include "launch/replay.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>

#include "kernels/elementwise.h"

namespace baton {
namespace {

/// Cases are groups that hold "in"; they may be nested.
void find_cases(const Hdf5File& file, const std::string& group, std::vector<std::string>& cases) {
  for (const std::string& name : file.list(group.empty() ? "/" : group)) {
    const std::string path = group + "/" + name;
    if (!file.is_group(path)) continue;
    if (file.exists(path + "/in"))
      cases.push_back(path);
    else
      find_cases(file, path, cases);
  }
}

double norm(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return std::sqrt(sum);
}

OwnedTensor to_double(const Tensor& x) {
  OwnedTensor y(x.shape, DType::kFloat64);
  convert(x, y, Stream{});
  return y;
}

}  // namespace

ReplayOptions parse_replay_options(const Command& command) {
  ReplayOptions o;
  CHECK_INPUT(command.positional.size() == 1, "baton replay takes one file, got {}", command.positional.size());
  o.file = command.positional[0];
  const std::string& dtype = command.flags.at("dtype");
  CHECK_INPUT(dtype == "float32" || dtype == "float64" || dtype == "bfloat16",
              "--dtype = {}: must be float32, float64 or bfloat16", dtype);
  o.dtype = parse_dtype(dtype);
  o.device = command.flags.at("device");
  if (o.device == "auto" && o.dtype == DType::kFloat64) o.device = "cpu";
  o.scan = parse_scan_strategy("--scan", command.flags.at("scan"));
  const std::string& tolerance = command.flags.at("tolerance");
  if (!tolerance.empty()) {
    char* end = nullptr;
    o.tolerance = std::strtod(tolerance.c_str(), &end);
    CHECK_INPUT(*end == '\0' && o.tolerance > 0, "--tolerance = {}: must be a number above 0", tolerance);
  }
  o.out = command.flags.at("out");
  return o;
}

double default_tolerance(DType dtype, const std::string& name) {
  if (dtype == DType::kFloat64) return 1e-12;
  if (dtype == DType::kFloat32) return 1e-5;
  if (name == "/logits") return 3e-2;
  if (name == "/loss") return 2e-3;
  if (name.starts_with("/grad/")) return 1e-1;
  if (name.starts_with("/state/")) return 3e-2;
  return name.ends_with("/dgk") || name.ends_with("/dgv") ? 1e-2 : 5e-3;
}

ReplayReport::ReplayReport(const ReplayOptions& options, Group& group, const Stream& stream)
    : options_(options), group_(group), stream_(stream), file_(options.file, Hdf5File::Mode::kRead) {
  if (group.rank() > 0 || options.out.empty()) return;
  try {
    out_ = std::make_unique<Hdf5File>(options.out, Hdf5File::Mode::kCreate);
  } catch (const Error& e) {
    throw Error(ExitCode::kInput,
                fmt::format("--out = {}: must be a file that can be written ({})", options.out, e.what()));
  }
}

OwnedTensor ReplayReport::read(const std::string& name, DType dtype) const {
  CHECK_INPUT(file_.exists(name), "{} = {}: the case lacks dataset {}", "FILE", file_.path(), name);
  OwnedTensor x(file_.shape(name), dtype);
  file_.read(name, x);
  return x;
}

void ReplayReport::line(const std::string& name, double error, bool good) {
  ++num_tensors_;
  if (!good) ++num_failed_;
  worst_ = std::isnan(error) ? error : std::max(worst_, error);
  std::printf("%-52s %10.2e %s\n", name.c_str(), error, good ? "ok" : "FAILED");
}

void ReplayReport::judge(const std::string& name, const Tensor& mine, const std::string& factor_a,
                         const std::string& factor_b) {
  if (group_.rank() != 0) return;
  judged_.push_back(name);
  if (out_) out_->write(name, mine);
  if (!file_.exists(name)) return line(name + " (missing in the file)", NAN, false);
  if (file_.shape(name) != mine.shape) return line(name + " (another shape in the file)", NAN, false);
  const OwnedTensor ref(mine.shape, DType::kFloat64), x = to_double(mine);
  file_.read(name, ref);
  const int64_t n = mine.numel();
  std::vector<double> difference(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) difference[i] = x.tensor.as<double>()[i] - ref.tensor.as<double>()[i];
  double denominator = norm(ref.tensor.as<double>(), n);
  if (!factor_a.empty() && file_.exists(factor_a) && file_.exists(factor_b)) {
    const OwnedTensor a(file_.shape(factor_a), DType::kFloat64), b(file_.shape(factor_b), DType::kFloat64);
    file_.read(factor_a, a);
    file_.read(factor_b, b);
    std::vector<double> product(static_cast<size_t>(a.tensor.numel()));
    for (size_t i = 0; i < product.size(); ++i) product[i] = a.tensor.as<double>()[i] * b.tensor.as<double>()[i];
    denominator = std::max(denominator, norm(product.data(), static_cast<int64_t>(product.size())));
  }
  // Below the dtype's smallest normal number digits run out: no relative accuracy can be asked there.
  const double smallest = options_.dtype == DType::kFloat64 ? DBL_MIN : FLT_MIN;
  if (denominator > 0) denominator = std::max(denominator, std::sqrt(static_cast<double>(n)) * smallest);
  const double error = norm(difference.data(), n) / (denominator > 0 ? denominator : 1.0);
  const double tolerance = options_.tolerance > 0 ? options_.tolerance : default_tolerance(options_.dtype, name);
  line(name, error, error <= tolerance);
}

void ReplayReport::expect_complete(const std::string& group_name) {
  if (group_.rank() != 0) return;
  for (const std::string& name : file_.list(group_name)) {
    const std::string path = group_name + "/" + name;
    if (std::find(judged_.begin(), judged_.end(), path) == judged_.end()) line(path + " (not computed)", NAN, false);
  }
}

ExitCode ReplayReport::finish() {
  if (group_.rank() == 0) {
    std::printf("%ld tensors, %ld failed, largest error %.2e, %s, %d rank%s\n", static_cast<long>(num_tensors_),
                static_cast<long>(num_failed_), worst_, to_string(options_.dtype).c_str(), group_.size(),
                group_.size() == 1 ? "" : "s");
    if (out_) out_->close();
  }
  const bool good = group_.rank() != 0 || (num_failed_ == 0 && num_tensors_ > 0);
  return all_reduce(group_, static_cast<int64_t>(good), ReduceOp::kMin) == 1 ? ExitCode::kDone : ExitCode::kComparison;
}

ExitCode replay(const ReplayOptions& options, Group& group, const Stream& stream) {
  std::unique_ptr<ReplayReport> report;
  together(group, [&] { report = std::make_unique<ReplayReport>(options, group, stream); });
  if (report->file().exists("/param")) {
    replay_model(*report);
    return report->finish();
  }
  std::vector<std::string> cases;
  together(group, [&] {
    find_cases(report->file(), "", cases);
    CHECK_INPUT(!cases.empty(), "FILE = {}: holds neither operator cases (groups with in/) nor a model (/param)",
                options.file);
  });
  for (const std::string& name : cases) replay_operator_case(name, *report);
  return report->finish();
}

}  // namespace baton
