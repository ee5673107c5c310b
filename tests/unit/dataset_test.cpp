#include "runtime/dataset.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "tests/unit/error_text.h"
#include "tests/unit/scratch_dir.h"

namespace baton {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

struct Slice {
  std::vector<int32_t> tokens, targets;
  std::vector<uint8_t> starts;
  std::vector<int64_t> positions;
  explicit Slice(int64_t count)
      : tokens(static_cast<size_t>(count), -7),
        targets(static_cast<size_t>(count), -7),
        starts(static_cast<size_t>(count), 9),
        positions(static_cast<size_t>(count), -7) {}
  SampleSlice view() { return {tokens.data(), targets.data(), starts.data(), positions.data()}; }
  void append(const Slice& s) {
    tokens.insert(tokens.end(), s.tokens.begin(), s.tokens.end());
    targets.insert(targets.end(), s.targets.begin(), s.targets.end());
    starts.insert(starts.end(), s.starts.begin(), s.starts.end());
    positions.insert(positions.end(), s.positions.begin(), s.positions.end());
  }
  bool operator==(const Slice&) const = default;
};

Slice train_slice(const Dataset& data, int64_t sample, uint64_t seed, int64_t seq_len, int64_t first, int64_t count) {
  Slice s(count);
  data.read_train(sample, seed, seq_len, first, count, s.view());
  return s;
}

Slice val_slice(const Dataset& data, int64_t sample, int64_t seq_len, int64_t first, int64_t count) {
  Slice s(count);
  data.read_val(sample, seq_len, first, count, s.view());
  return s;
}

std::string text_of(int64_t n) {
  std::string text;
  for (int64_t i = 0; i < n; ++i) text += static_cast<char>((i * 37 + i / 256) % 256);
  return text;
}

/// A token shard as llm.c writes it.
template <class T>
std::string shard(int32_t magic, int32_t version, const std::vector<T>& tokens, int64_t claimed = -1) {
  std::vector<int32_t> header(256);
  header[0] = magic, header[1] = version;
  header[2] = static_cast<int32_t>(claimed >= 0 ? claimed : static_cast<int64_t>(tokens.size()));
  std::string bytes(1024 + tokens.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), header.data(), 1024);
  if (!tokens.empty()) std::memcpy(bytes.data() + 1024, tokens.data(), tokens.size() * sizeof(T));
  return bytes;
}

Dataset open(const std::string& pattern, const DataConfig& config = {}) { return {config, "data.train", pattern}; }

TEST(Dataset, TextIsBytesInFileOrder) {
  ScratchDir dir;
  dir.write("b.txt", "fgh\xff");
  dir.write("a.txt", "abcde");
  const Dataset data = open(dir.path("*.txt"));
  EXPECT_EQ(data.num_tokens(), 9);
  EXPECT_EQ(data.vocab(), 256);
  EXPECT_EQ(data.separator(), -1);
  EXPECT_EQ(data.num_samples(4), 2);
  EXPECT_EQ(data.num_samples(8), 1);
  const Slice s = val_slice(data, 1, 4, 0, 4);  // across the files' border
  EXPECT_THAT(s.tokens, ElementsAre('e', 'f', 'g', 'h'));
  EXPECT_THAT(s.targets, ElementsAre('f', 'g', 'h', 255));
  EXPECT_THAT(s.starts, Each(0));
  EXPECT_THAT(s.positions, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(val_slice(data, 1, 4, 2, 2).positions, ElementsAre(2, 3));
}

TEST(Dataset, SlicingChangesNothing) {
  ScratchDir dir;
  DataConfig config;
  config.separator = "10";
  const Dataset data = open(dir.write("a.txt", text_of(3000)), config);
  for (int64_t seq_len : {1, 2, 7, 100, 2999}) {
    for (int64_t sample : {int64_t{0}, int64_t{5}, int64_t{100000}, int64_t{1} << 40}) {
      const Slice whole = train_slice(data, sample, 3, seq_len, 0, seq_len);
      for (int64_t parts : {2, 3, 8}) {
        Slice joined(0);
        for (int64_t r = 0; r < parts; ++r) {
          const int64_t first = r * seq_len / parts, end = (r + 1) * seq_len / parts;
          joined.append(train_slice(data, sample, 3, seq_len, first, end - first));
        }
        EXPECT_TRUE(whole == joined) << seq_len << " tokens, sample " << sample << ", " << parts << " parts";
      }
    }
  }
}

TEST(Dataset, AnEpochHoldsEveryCellOnceAndEpochsDiffer) {
  ScratchDir dir;
  // Token i is i, so that a sample tells where it began.
  std::vector<uint16_t> ids(1010);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(i);
  const Dataset data = open(dir.write("a.bin", shard<uint16_t>(20240520, 1, ids)));
  const int64_t seq_len = 17, n = data.num_samples(seq_len);
  EXPECT_EQ(n, 59);
  std::set<std::vector<int32_t>> orders;
  std::set<int32_t> shifts;
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    std::vector<int32_t> begins;
    for (int64_t i = 0; i < n; ++i) begins.push_back(train_slice(data, epoch * n + i, 5, seq_len, 0, 1).tokens[0]);
    orders.insert(begins);
    std::sort(begins.begin(), begins.end());
    const int32_t shift = begins[0];
    shifts.insert(shift);
    EXPECT_LE(shift, 1010 - 1 - n * seq_len);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(begins[static_cast<size_t>(i)], shift + i * seq_len);
  }
  EXPECT_EQ(orders.size(), 8u);
  EXPECT_GE(shifts.size(), 2u);
  EXPECT_FALSE(train_slice(data, 0, 5, seq_len, 0, 17) == train_slice(data, 0, 6, seq_len, 0, 17) &&
               train_slice(data, 1, 5, seq_len, 0, 17) == train_slice(data, 1, 6, seq_len, 0, 17));
}

TEST(Dataset, NoRoomForAShift) {
  ScratchDir dir;
  const Dataset data = open(dir.write("a.txt", text_of(33)));
  EXPECT_EQ(data.num_samples(32), 1);
  for (int64_t sample : {0, 1, 2}) EXPECT_EQ(train_slice(data, sample, 1, 32, 0, 32).tokens[0], 0);
}

TEST(Dataset, DocumentsStartBehindTheSeparator) {
  ScratchDir dir;
  DataConfig config;
  config.separator = "10";
  const Dataset data = open(dir.write("a.txt", "ab\ncd\n\nefghij\nkl"), config);
  EXPECT_EQ(data.separator(), 10);
  const Slice s = val_slice(data, 0, 15, 0, 15);
  EXPECT_THAT(s.tokens, ElementsAre('a', 'b', 10, 'c', 'd', 10, 10, 'e', 'f', 'g', 'h', 'i', 'j', 10, 'k'));
  EXPECT_THAT(s.targets, ElementsAre('b', 10, -1, 'd', 10, -1, -1, 'f', 'g', 'h', 'i', 'j', 10, -1, 'l'));
  EXPECT_THAT(s.starts, ElementsAre(0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1));
  EXPECT_THAT(s.positions, ElementsAre(0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 0));
  for (int64_t cut = 0; cut <= 15; ++cut) {  // separators and starts at either side of a border
    Slice joined = val_slice(data, 0, 15, 0, cut);
    joined.append(val_slice(data, 0, 15, cut, 15 - cut));
    EXPECT_TRUE(joined == s) << "cut at " << cut;
  }
  // A sequence that begins with a document's first token, or inside one: counted from its own first token.
  const Slice inside = val_slice(data, 1, 4, 0, 4);
  EXPECT_THAT(inside.tokens, ElementsAre('d', 10, 10, 'e'));
  EXPECT_THAT(inside.positions, ElementsAre(0, 1, 0, 0));
  const Slice first = val_slice(data, 1, 3, 0, 3);
  EXPECT_THAT(first.tokens, ElementsAre('c', 'd', 10));
  EXPECT_THAT(first.starts, ElementsAre(0, 0, 0));
}

TEST(Dataset, InStreamOrderEachRowReadsItsStretch) {
  ScratchDir dir;
  const Dataset data = open(dir.write("a.txt", text_of(75)));
  EXPECT_EQ(data.num_stream_steps(3, 6), 4);  // 12 sequences of 6, and 2 tokens left over
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t step = 0; step < 9; ++step) {  // the fifth begins again
      Slice s(6);
      data.read_stream({step, row, 3, 6}, 100, 0, 6, s.view());
      const Slice there = val_slice(data, row * 4 + step % 4, 6, 0, 6);
      EXPECT_EQ(s.tokens, there.tokens);
      EXPECT_EQ(s.targets, there.targets);
      EXPECT_THAT(s.starts, Each(0));
      EXPECT_THAT(s.positions, ElementsAre(100, 101, 102, 103, 104, 105));
    }
  EXPECT_EQ(data.position_after({1, 2, 3, 6}, 100), 106);
}

TEST(Dataset, InStreamOrderDocumentsGoOnAcrossSequences) {
  ScratchDir dir;
  DataConfig config;
  config.separator = "10";
  const Dataset data = open(dir.write("a.txt", "ab\ncdefghij\nklm\n\nn"), config);
  for (const int64_t seq_len : {1, 2, 3, 4, 5, 8, 17}) {
    Slice joined(0);
    int64_t position = 0;
    const int64_t steps = data.num_stream_steps(1, seq_len);
    for (int64_t step = 0; step < steps; ++step) {
      const StreamPlace place{step, 0, 1, seq_len};
      for (int64_t part = 0; part < 3; ++part) {  // as three ranks read it
        const int64_t first = part * seq_len / 3, count = (part + 1) * seq_len / 3 - first;
        Slice s(count);
        data.read_stream(place, position, first, count, s.view());
        joined.append(s);
      }
      position = data.position_after(place, position);
    }
    Slice whole = val_slice(data, 0, steps * seq_len, 0, steps * seq_len);
    whole.starts[0] = 1;
    EXPECT_TRUE(joined == whole) << "sequences of " << seq_len;
  }
}

TEST(Dataset, TokenShardsOfBothKinds) {
  ScratchDir dir;
  dir.write("g0.bin", shard<uint16_t>(20240520, 1, {1, 50256, 3}));
  dir.write("g1.bin", shard<uint16_t>(20240520, 1, {}));
  dir.write("g2.bin", shard<uint16_t>(20240520, 1, {4, 5}));
  const Dataset gpt2 = open(dir.path("g*.bin"));
  EXPECT_EQ(gpt2.vocab(), 50257);
  EXPECT_THAT(val_slice(gpt2, 0, 4, 0, 4).tokens, ElementsAre(1, 50256, 3, 4));
  EXPECT_THAT(val_slice(gpt2, 0, 4, 0, 4).targets, ElementsAre(50256, 3, 4, 5));
  DataConfig config;
  config.format = "llmc", config.separator = "128000";
  const Dataset llama = open(dir.write("l.bin", shard<uint32_t>(20240801, 7, {128000, 70000, 2})), config);
  EXPECT_EQ(llama.vocab(), 128256);
  EXPECT_THAT(val_slice(llama, 0, 2, 0, 2).tokens, ElementsAre(128000, 70000));
  EXPECT_THAT(val_slice(llama, 0, 2, 0, 2).targets, ElementsAre(-1, 2));
  EXPECT_THAT(val_slice(llama, 0, 2, 0, 2).starts, ElementsAre(0, 1));
}

TEST(Dataset, ShardOfMoreThanFourGiB) {
  ScratchDir dir;
  const int64_t count = (int64_t{1} << 32) + 1000;  // also more tokens than 32 bits count; sparse on disk
  const std::string path = dir.write("big.bin", shard<uint16_t>(20240520, 1, {}, count % (int64_t{1} << 32)));
  ASSERT_EQ(truncate(path.c_str(), 1024 + 2 * count), 0);
  const int fd = ::open(path.c_str(), O_WRONLY);
  const uint16_t tail[] = {11, 12, 13};
  ASSERT_EQ(pwrite(fd, tail, sizeof tail, 1024 + 2 * (count - 3)), static_cast<ssize_t>(sizeof tail));
  close(fd);
  const Dataset data = open(path);
  EXPECT_EQ(data.num_tokens(), count);
  const int64_t seq_len = 1000, last = data.num_samples(seq_len) - 1;
  EXPECT_EQ(last, (count - 1) / seq_len - 1);
  EXPECT_THAT(val_slice(data, 0, count - 1, count - 4, 3).tokens, ElementsAre(0, 11, 12));
  EXPECT_THAT(val_slice(data, 0, count - 1, count - 4, 3).targets, ElementsAre(11, 12, 13));
  EXPECT_THAT(val_slice(data, 0, count - 1, count - 4, 3).positions, ElementsAre(count - 4, count - 3, count - 2));
  EXPECT_THAT(train_slice(data, last, 1, seq_len, 0, 4).positions, ElementsAre(0, 1, 2, 3));
}

TEST(Dataset, BadFilesAreInputErrors) {
  ScratchDir dir;
  const auto refusal = [&](const std::string& pattern, const DataConfig& config = {}) {
    return input_error([&] { open(pattern, config).require({4, "eval.seq_len"}); });
  };
  DataConfig llmc;
  llmc.format = "llmc";
  EXPECT_EQ(refusal(""), "data.train = (empty): must name files");
  EXPECT_EQ(refusal(dir.path("*.none")),
            "data.train = " + dir.path("*.none") + ": must match at least one file, but matches none");
  EXPECT_THAT(refusal(dir.path()), HasSubstr("must be a regular file"));
  EXPECT_THAT(refusal(dir.write("empty", "")), HasSubstr("must not be empty"));
  EXPECT_THAT(refusal(dir.write("short", "abcd")),
              HasSubstr("must hold at least eval.seq_len + 1 = 5 tokens, but has 4"));
  EXPECT_THAT(refusal(dir.write("text", "abcdefgh"), llmc), HasSubstr("must be a token shard of llm.c"));
  const auto good = shard<uint16_t>(20240520, 1, {1, 2, 3, 4, 5});
  EXPECT_THAT(refusal(dir.write("cut", good.substr(0, good.size() - 2))),
              HasSubstr("the 5 tokens of its header, but its size gives 4"));
  EXPECT_THAT(refusal(dir.write("odd", good.substr(0, good.size() - 1))), HasSubstr("the 5 tokens of its header"));
  EXPECT_THAT(refusal(dir.write("head", good.substr(0, 100))),
              HasSubstr("a token-shard header of 1024 bytes, but has 100"));
  EXPECT_THAT(refusal(dir.write("v9", shard<uint16_t>(20240520, 9, {1}))), HasSubstr("of version 1, not 9"));
  dir.write("mix1", good);
  dir.write("mix2", "plain text");
  EXPECT_THAT(refusal(dir.path("mix*")), HasSubstr("must match files of one format"));
  DataConfig separator;
  separator.separator = "256";
  EXPECT_EQ(refusal(dir.path("text"), separator),
            "data.separator = 256: must be none or a token id below the vocabulary, 256");
  DataConfig spm;
  spm.format = "spm", spm.tokenizer = dir.path("text");
  EXPECT_EQ(refusal(dir.path("text"), spm),
            "data.tokenizer = " + dir.path("text") + ": must be a SentencePiece model file");
}

TEST(Dataset, TokenIdsAreCheckedWhenRead) {
  ScratchDir dir;
  dir.write("a.bin", shard<uint16_t>(20240520, 1, {1, 2, 3}));
  dir.write("b.bin", shard<uint16_t>(20240520, 1, {4, 50257, 6}));
  const Dataset data = open(dir.path("*.bin"));
  EXPECT_NO_THROW(val_slice(data, 0, 5, 0, 3));
  EXPECT_EQ(input_error([&] { val_slice(data, 0, 5, 0, 5); }),
            "data.train = " + dir.path("b.bin") + ": token 50257 at position 1 must be below the vocabulary, 50257");
  EXPECT_THAT(input_error([&] { val_slice(data, 0, 5, 0, 4); }), HasSubstr("token 50257"));  // as a target
  const Dataset wide = open(dir.write("c", shard<uint32_t>(20240801, 7, {4000000000u, 1})));
  EXPECT_THAT(input_error([&] { val_slice(wide, 0, 1, 0, 1); }), HasSubstr("must be below the vocabulary, 128256"));
}

}  // namespace
}  // namespace baton
