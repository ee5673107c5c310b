#include "runtime/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include "runtime/dataset.h"
#include "tests/unit/error_text.h"
#include "tests/unit/scratch_dir.h"

namespace baton {
namespace {

TEST(Tokenizer, BytesRoundTrip) {
  const auto bytes = make_byte_tokenizer();
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  const auto tokens = bytes->encode(text);
  EXPECT_EQ(bytes->vocab(), 256);
  EXPECT_EQ(tokens[255], 255);
  EXPECT_EQ(bytes->decode(tokens), text);
  EXPECT_THROW(bytes->decode({256}), Error);
}

/// A small text of many lines, each different.
std::string sample_text(int lines) {
  static const char* kWords[] = {"light", "darkness", "water", "earth", "heaven", "and", "the", "of", "upon", "was"};
  std::string text;
  for (int line = 0; line < lines; ++line) {
    for (int word = 0; word < 8; ++word)
      text += std::string(word > 0 ? " " : "") + kWords[(line * 7 + word * word * 3 + line / 10) % 10];
    text += "\n";
  }
  return text;
}

class SpmTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    const std::string corpus = dir_.write("corpus.txt", sample_text(400));
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        "--input=" + corpus + " --model_prefix=" + dir_.path("tiny") +
        " --vocab_size=60 --model_type=bpe --minloglevel=2 --num_threads=1 --hard_vocab_limit=false");
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  ScratchDir dir_;
};

TEST_F(SpmTokenizer, RoundTrip) {
  const auto spm = make_spm_tokenizer("data.tokenizer", dir_.path("tiny.model"));
  const std::string text = "the light was upon the water";
  const auto tokens = spm->encode(text);
  EXPECT_GT(spm->vocab(), 20);
  EXPECT_LT(tokens.size(), text.size());
  EXPECT_EQ(spm->decode(tokens), text);
  EXPECT_THROW(spm->decode({static_cast<int32_t>(spm->vocab())}), Error);
}

TEST_F(SpmTokenizer, DatasetReadsTextThroughTheModel) {
  const std::string text = sample_text(4000);  // more than is encoded at a time
  ASSERT_GT(text.size(), size_t{100000});
  DataConfig config;
  config.tokenizer = dir_.path("tiny.model");
  const Dataset data(config, "data.train", dir_.write("text.txt", text));
  const auto spm = make_spm_tokenizer("data.tokenizer", config.tokenizer);
  EXPECT_EQ(data.vocab(), spm->vocab());
  const auto n = static_cast<size_t>(data.num_tokens() - 1);
  std::vector<int32_t> tokens(n), targets(n);
  std::vector<uint8_t> starts(n);
  std::vector<int64_t> positions(n);
  data.read_val(0, data.num_tokens() - 1, 0, data.num_tokens() - 1,
                {tokens.data(), targets.data(), starts.data(), positions.data()});
  tokens.push_back(targets.back());
  EXPECT_EQ(tokens, spm->encode(text));  // this model takes a line's end for a space, so cuts behind it do not show
}

TEST(Tokenizer, NoModelIsAnInputError) {
  ScratchDir dir;
  for (const std::string& path : {dir.path("missing.model"), dir.write("bad.model", "not a model")})
    EXPECT_EQ(input_error([&] { make_spm_tokenizer("data.tokenizer", path); }),
              "data.tokenizer = " + path + ": must be a SentencePiece model file");
}

}  // namespace
}  // namespace baton
