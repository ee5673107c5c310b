#include "launch/text_stream.h"

namespace baton {
namespace {

constexpr size_t kContext = 8;   // shown tokens that the next one's text may depend on
constexpr size_t kHeldBack = 8;  // tokens that an incomplete character may take

}  // namespace

std::string TextStream::put(int32_t token) {
  tokens_.push_back(token);
  // A decoder of pieces shows U+FFFD for bytes that are no whole character yet.
  const bool incomplete = tokenizer_.decode(tokens_).ends_with("\xEF\xBF\xBD");
  return incomplete && tokens_.size() - num_shown_ < kHeldBack ? "" : take();
}

std::string TextStream::finish() { return take(); }

std::string TextStream::take() {
  const std::vector<int32_t> shown(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(num_shown_));
  const std::string before = tokenizer_.decode(shown), all = tokenizer_.decode(tokens_);
  num_shown_ = tokens_.size();
  if (num_shown_ > kContext) {
    tokens_.erase(tokens_.begin(), tokens_.end() - static_cast<std::ptrdiff_t>(kContext));
    num_shown_ = kContext;
  }
  return all.substr(std::min(before.size(), all.size()));
}

}  // namespace baton
