// What a run says: console lines, metrics.jsonl, and TensorBoard events.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace baton {

/// One line to stderr: "host rank N [step S] message". For errors and warnings; safe from any rank.
void log_line(int world_rank, int64_t step, const std::string& message);

/// One step's figures. NaN where a figure was not taken (val_loss): left out of the file.
struct StepMetrics {
  int64_t step = 0, tokens = 0;  // tokens so far
  double loss = 0, val_loss = 0, lr = 0, grad_norm = 0, tokens_per_s = 0, tokens_per_s_per_rank = 0, mfu = 0,
         step_s = 0;
  int64_t mem_bytes = 0;
};

/// Appends to DIR/metrics.jsonl and DIR/tb/events.out.tfevents.*; one object on world rank 0. On resume, lines of steps
/// after `first_step` are dropped from metrics.jsonl, so that no step stands twice.
class MetricsWriter {
 public:
  MetricsWriter(const std::string& run_dir, int64_t first_step);
  ~MetricsWriter();
  void write(const StepMetrics& m);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The progress line: rewritten in place on a terminal, a plain line elsewhere.
class ConsoleLine {
 public:
  ConsoleLine();
  void show(const std::string& text);
  void end();  // leaves the last text standing

 private:
  bool terminal_;
  size_t shown_ = 0;
};

/// Peak resident memory of this process in bytes.
int64_t peak_memory_bytes();

/// "1.5 GiB", "12h03m".
std::string format_bytes(int64_t bytes);
std::string format_seconds(double seconds);

}  // namespace baton
