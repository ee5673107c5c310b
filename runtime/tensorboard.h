// TensorBoard event files: scalars alone, written without TensorFlow.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace baton {

/// One new file in `dir`, which must exist. After a resume at step s > 0, TensorBoard drops what older files of the
/// directory hold of later steps.
class EventWriter {
 public:
  EventWriter(const std::string& dir, int64_t first_step);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// Scalars of one step by tag; flushed.
  void write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);

 private:
  void write_event(int64_t step, const std::string& field);
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace baton
