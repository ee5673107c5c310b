// TextStream: tokens in, text out, as soon as it is certain. Pieces of a SentencePiece model depend on the tokens
// before them, and one character may take several; only a bounded number of tokens is looked at again.
#pragma once

#include <string>
#include <vector>

#include "runtime/tokenizer.h"

namespace baton {

class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// The text that this token adds, empty while a character is incomplete.
  std::string put(int32_t token);
  /// What is still held back.
  std::string finish();

 private:
  std::string take();

  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;  // the last ones: those shown (context of the next), then those held back
  size_t num_shown_ = 0;
};

}  // namespace baton
