// What holds for a trainer on any device, checked on a small model and one rank.
#pragma once

#include <string>

#include "runtime/stream.h"

namespace baton::test {

/// A trainer's memory is its arena, of the size that the plan measures; steps and validation take none beside it once
/// the first of them has run.
void steps_take_no_memory(const Stream& stream, DType dtype, const std::string& order);

}  // namespace baton::test
