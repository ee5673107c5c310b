#include "runtime/tokenizer.h"

#include <sentencepiece_processor.h>

#include "runtime/error.h"

namespace baton {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab() const override { return 256; }
  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int32_t> tokens(text.size());
    for (size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
    return tokens;
  }
  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text(tokens.size(), '\0');
    for (size_t i = 0; i < tokens.size(); ++i) {
      CHECK(tokens[i] >= 0 && tokens[i] < 256, "token {} is no byte", tokens[i]);
      text[i] = static_cast<char>(tokens[i]);
    }
    return text;
  }
};

class SpmTokenizer : public Tokenizer {
 public:
  SpmTokenizer(const std::string& key, const std::string& path) {
    const auto status = model_.Load(path);
    CHECK_INPUT(status.ok(), "{} = {}: must be a SentencePiece model file", key, path);
  }
  int64_t vocab() const override { return model_.GetPieceSize(); }
  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int> ids;
    const auto status = model_.Encode(text, &ids);
    CHECK(status.ok(), "SentencePiece could not encode a text of {} bytes: {}", text.size(), status.ToString());
    return {ids.begin(), ids.end()};
  }
  std::string decode(const std::vector<int32_t>& tokens) const override {
    for (int32_t id : tokens) CHECK(id >= 0 && id < vocab(), "token {} is not below the vocabulary {}", id, vocab());
    std::string text;
    const auto status = model_.Decode(std::vector<int>(tokens.begin(), tokens.end()), &text);
    CHECK(status.ok(), "SentencePiece could not decode {} tokens: {}", tokens.size(), status.ToString());
    return text;
  }

 private:
  sentencepiece::SentencePieceProcessor model_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_spm_tokenizer(const std::string& key, const std::string& path) {
  return std::make_unique<SpmTokenizer>(key, path);
}

}  // namespace baton
