// Tokenizer: text to token ids and back. Bytes (vocabulary 256), or a SentencePiece model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace baton {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocab() const = 0;
  virtual std::vector<int32_t> encode(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& tokens) const = 0;
};

std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// Throws an input error naming `key` and path where the file is not a SentencePiece model.
std::unique_ptr<Tokenizer> make_spm_tokenizer(const std::string& key, const std::string& path);

}  // namespace baton
