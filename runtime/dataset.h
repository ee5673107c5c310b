// Dataset: tokens of one or more files, cut into sequences. In permuted order (seed, sample index) alone decide which
// comes when; in stream order each row of the batch reads a stretch of its own from end to end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/config.h"
#include "runtime/tokenizer.h"

namespace baton {

/// One rank's stretch of one sample, host pointers owned by the caller, `count` elements each.
struct SampleSlice {
  int32_t* tokens = nullptr;
  int32_t* targets = nullptr;    // the next token; -1 at a document's last token
  uint8_t* starts = nullptr;     // 1 where a document starts inside the sequence
  int64_t* positions = nullptr;  // position in the document (in the sequence, where its first document began earlier)
};

/// A sequence in stream order: what `row` of `num_rows` reads in step `step`, counted from 0.
struct StreamPlace {
  int64_t step = 0, row = 0, num_rows = 1, seq_len = 0;
};

class Dataset {
 public:
  /// Opens (maps) every file that matches `pattern`; `key` names it in messages ("data.train"). Formats: text (bytes,
  /// vocabulary 256), llmc (the uint16 and uint32 shards of llm.c, magic 20240520 and 20240801, 64-bit offsets), spm
  /// (text through config.tokenizer). Input errors name key, file and rule; token ids are checked against the
  /// vocabulary when they are read.
  Dataset(const DataConfig& config, const std::string& key, const std::string& pattern);
  ~Dataset();
  Dataset(Dataset&&) noexcept;

  int64_t num_tokens() const;
  int64_t vocab() const;
  int64_t separator() const;  // -1: none

  /// Input error unless there is a sequence of that length and the token after it.
  void require(const SequenceLength& length) const;
  /// Sequences of seq_len tokens that an epoch has: floor((num_tokens - 1) / seq_len), at least 1.
  int64_t num_samples(int64_t seq_len) const;

  /// Tokens [first, first + count) of a training sample. Sample s of epoch e is a cell of a grid of seq_len tokens,
  /// shifted and permuted by (seed, e), so that an epoch holds every cell once.
  void read_train(int64_t sample, uint64_t seed, int64_t seq_len, int64_t first, int64_t count, SampleSlice out) const;
  /// The same of validation sample i: tokens from i * seq_len on, in file order.
  void read_val(int64_t sample, int64_t seq_len, int64_t first, int64_t count, SampleSlice out) const;

  /// Tokens [first, first + count) of a sequence of the stream order. `position` is that of its first token in its
  /// document, which may have begun in an earlier sequence; at position 0 a document starts.
  void read_stream(const StreamPlace& place, int64_t position, int64_t first, int64_t count, SampleSlice out) const;
  /// Position in its document of the token that follows the sequence.
  int64_t position_after(const StreamPlace& place, int64_t position) const;
  /// Sequences in a row's stretch, as many as every row has: after so many steps all begin again.
  int64_t num_stream_steps(int64_t num_rows, int64_t seq_len) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
