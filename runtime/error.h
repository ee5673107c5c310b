// Errors: one exception type, and the checks that throw it.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace baton {

/// What a baton process returns to its launcher.
enum class ExitCode : int {
  kDone = 0,
  kComparison = 1,  // a comparison failed (replay, doctor)
  kInput = 2,       // bad configuration or input
  kNotFinite = 3,   // NaN or Inf where a number must be
  kTransport = 4,   // a rank, a transport or the program itself failed
  kStopped = 75,    // stopped on request, checkpoint saved
};

/// Carries the sentence for the user, the expression that did not hold, its place, and the exit code it means.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, const char* expression = "", const char* file = "", int line = 0)
      : std::runtime_error(message), code_(code), expression_(expression), file_(file), line_(line) {}

  ExitCode code() const { return code_; }
  const char* expression() const { return expression_; }
  const char* file() const { return file_; }
  int line() const { return line_; }

  /// True where every rank throws this same error (together()): all may then finish in good order.
  bool agreed() const { return agreed_; }
  void set_agreed() { agreed_ = true; }

  /// For the log: message, and for a failed CHECK also expression and place. Input errors stay one plain sentence.
  std::string describe() const {
    if (code_ == ExitCode::kInput || *expression_ == '\0') return what();
    return fmt::format("{} [{} at {}:{}]", what(), expression_, file_, line_);
  }

 private:
  ExitCode code_;
  const char* expression_;
  const char* file_;
  int line_;
  bool agreed_ = false;
};

/// A rank does not answer, or the transport failed: whoever waited throws it, and cannot agree with others any more.
class LostRank : public Error {
 public:
  explicit LostRank(const std::string& message) : Error(ExitCode::kTransport, message) {}
};

}  // namespace baton

/// CHECK(condition, "format with {}", values...): always on; a failure is a defect of the program or its machine.
#define CHECK(condition, ...) CHECK_CODE(::baton::ExitCode::kTransport, condition, __VA_ARGS__)

/// The user's mistake: the message is one sentence with key (or file), value and rule.
#define CHECK_INPUT(condition, ...) CHECK_CODE(::baton::ExitCode::kInput, condition, __VA_ARGS__)

#define CHECK_CODE(exit_code, condition, ...)                                                      \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      throw ::baton::Error(exit_code, ::fmt::format(__VA_ARGS__), #condition, __FILE__, __LINE__); \
  } while (false)

#ifdef NDEBUG
#define DCHECK(condition, ...) static_cast<void>(0)
#else
#define DCHECK(condition, ...) CHECK(condition, __VA_ARGS__)
#endif
