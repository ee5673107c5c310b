#include "runtime/log.h"

#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/error.h"
#include "runtime/tensorboard.h"

namespace baton {
namespace {

std::string read_link(const std::string& path) {
  std::array<char, 256> target{};
  const ssize_t n = readlink(path.c_str(), target.data(), target.size() - 1);
  return n > 0 ? std::string(target.data(), static_cast<size_t>(n)) : "";
}

bool is_terminal_name(const std::string& path) { return path.starts_with("/dev/pts/") || path.starts_with("/dev/tty"); }

int64_t parent_of(int64_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');  // "pid (name) state parent ..."; the name may hold anything
  int64_t parent = 0;
  char state = 0;
  if (name_end != std::string::npos) std::istringstream(text.substr(name_end + 1)) >> state >> parent;
  return parent;
}

/// mpirun gives its ranks a terminal of their own even where its own output is a file: the first ancestor with another
/// output decides.
bool launcher_writes_to_terminal() {
  const std::string own = read_link("/proc/self/fd/1");
  int64_t pid = getppid();
  for (int depth = 0; pid > 1 && depth < 16; ++depth, pid = parent_of(pid)) {
    const std::string link = read_link(fmt::format("/proc/{}/fd/1", pid));
    if (link != own) return is_terminal_name(link);
  }
  return false;
}

bool writes_to_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  const bool launched = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr;
  return !launched || launcher_writes_to_terminal();
}

/// Columns of the terminal, or 0 where they are not known.
size_t terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// Lines of steps up to `last_step`; others, and a line that a crash cut short, are dropped.
std::string lines_up_to(const std::string& path, int64_t last_step) {
  std::ifstream file(path);
  std::string kept, line;
  while (std::getline(file, line)) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.value("step", last_step + 1) <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

void log_line(int world_rank, int64_t step, const std::string& message) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string at_step = step >= 0 ? fmt::format(" step {}", step) : "";
  // One call, so that the lines of several ranks do not mix.
  const std::string line = fmt::format("{} rank {}{} {}\n", host.data(), world_rank, at_step, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

struct MetricsWriter::Impl {
  std::string path;
  std::FILE* file = nullptr;
  std::unique_ptr<EventWriter> events;
  ~Impl() {
    if (file != nullptr) std::fclose(file);
  }
};

MetricsWriter::MetricsWriter(const std::string& run_dir, int64_t first_step) : impl_(std::make_unique<Impl>()) {
  std::error_code error;
  std::filesystem::create_directories(run_dir + "/tb", error);
  CHECK_INPUT(!error, "run.dir = {}: must be a directory that can be written ({})", run_dir, error.message());
  impl_->path = run_dir + "/metrics.jsonl";
  const std::string kept = lines_up_to(impl_->path, first_step), temporary = impl_->path + ".tmp";
  impl_->file = std::fopen(temporary.c_str(), "wb");
  CHECK_INPUT(impl_->file != nullptr, "run.dir = {}: must be a directory that can be written ({})", run_dir,
              std::strerror(errno));
  const bool written = std::fwrite(kept.data(), 1, kept.size(), impl_->file) == kept.size() &&
                       std::fflush(impl_->file) == 0 && std::rename(temporary.c_str(), impl_->path.c_str()) == 0;
  CHECK(written, "{}: could not be written ({})", impl_->path, std::strerror(errno));
  impl_->events = std::make_unique<EventWriter>(run_dir + "/tb", first_step);
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::write(const StepMetrics& m) {
  const std::pair<const char*, double> figures[] = {{"loss", m.loss},
                                                    {"val_loss", m.val_loss},
                                                    {"lr", m.lr},
                                                    {"grad_norm", m.grad_norm},
                                                    {"tokens_per_s", m.tokens_per_s},
                                                    {"tokens_per_s_per_rank", m.tokens_per_s_per_rank},
                                                    {"mfu", m.mfu},
                                                    {"step_s", m.step_s}};
  nlohmann::ordered_json line = {{"step", m.step}, {"tokens", m.tokens}};
  std::vector<std::pair<std::string, double>> scalars;
  for (const auto& [name, value] : figures) {
    if (!std::isfinite(value)) continue;
    line[name] = value;
    scalars.emplace_back(name, value);
  }
  line["mem_bytes"] = m.mem_bytes;
  scalars.emplace_back("mem_bytes", static_cast<double>(m.mem_bytes));
  const std::string text = line.dump() + "\n";
  const bool written =
      std::fwrite(text.data(), 1, text.size(), impl_->file) == text.size() && std::fflush(impl_->file) == 0;
  CHECK(written, "{}: could not be written ({})", impl_->path, std::strerror(errno));
  impl_->events->write(m.step, scalars);
}

ConsoleLine::ConsoleLine() : terminal_(writes_to_terminal()) {}

void ConsoleLine::show(const std::string& text) {
  const size_t columns = terminal_ ? terminal_columns() : 0;
  const std::string shown = columns > 1 ? text.substr(0, columns - 1) : text;
  const std::string rest(shown_ > shown.size() ? shown_ - shown.size() : 0, ' ');
  const std::string line = terminal_ ? "\r" + shown + rest : shown + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
  if (terminal_) shown_ = shown.size();
}

void ConsoleLine::end() {
  if (shown_ > 0) std::fputs("\n", stdout);
  std::fflush(stdout);
  shown_ = 0;
}

int64_t peak_memory_bytes() {
  rusage usage{};
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage failed ({})", std::strerror(errno));
  return int64_t{usage.ru_maxrss} * 1024;
}

std::string format_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1023.95 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return "?";
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

}  // namespace baton
