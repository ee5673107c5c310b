#include "runtime/profiler.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton {
namespace {

thread_local RangePath path;

void push(const char* name, int64_t index) {
  if (path.depth < RangePath::kMax) path.names[path.depth] = {name, index};
  ++path.depth;
  cuda::push_range(name, index);
}

void pop() {
  --path.depth;
  cuda::pop_range();
}

}  // namespace

std::string RangePath::str() const {
  std::string text;
  for (int i = 0; i < std::min(depth, kMax); ++i) {
    text += fmt::format("{}{}", i == 0 ? " in " : ", ", names[i].text);
    if (names[i].index >= 0) text += fmt::format(" {}", names[i].index);
  }
  return text;
}

const RangePath& current_ranges() { return path; }

ProfilerRange::ProfilerRange(const char* name) { push(name, -1); }
ProfilerRange::ProfilerRange(const char* name, int64_t index) { push(name, index); }
ProfilerRange::~ProfilerRange() { pop(); }

void ProfilerRange::next(const char* name) {
  pop();
  push(name, -1);
}

}  // namespace baton
