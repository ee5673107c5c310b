// For tests of messages.
#pragma once

#include <functional>
#include <string>

#include "runtime/error.h"

namespace baton {

/// What the input error says that `f` must throw; anything else is no match for any message.
inline std::string input_error(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.code() == ExitCode::kInput ? e.what() : std::string("not an input error: ") + e.what();
  }
  return "nothing was thrown";
}

}  // namespace baton
