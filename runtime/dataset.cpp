#include "runtime/dataset.h"

#include <algorithm>

#include "runtime/error.h"
#include "runtime/rng.h"
#include "runtime/token_files.h"

namespace baton {
namespace {

// Streams of the random numbers drawn here, apart from those of initialisation.
constexpr uint64_t kShiftStream = 0x6461746173686966, kOrderStream = 0x646174616f726465;

/// Place `i` of a permutation of [0, n) drawn by (seed, epoch): a Feistel network on the next power of four, walked
/// until it comes back below n. Nothing is stored, so the order of a billion samples costs no memory.
int64_t permute(int64_t i, int64_t n, uint64_t seed, uint64_t epoch) {
  int half_bits = 1;
  while ((int64_t{1} << (2 * half_bits)) < n) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  auto x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = left ^ (random_bits(seed, kOrderStream + epoch, (round << 32) | right) & mask);
      left = right;
      right = mixed;
    }
    x = (left << half_bits) | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace

struct Dataset::Impl {
  Impl(const DataConfig& config, const std::string& key_name, const std::string& file_pattern)
      : files(config, key_name, file_pattern), key(key_name), pattern(file_pattern) {
    if (config.separator == "none") return;
    set_value("data.separator", config.separator, separator);
    CHECK_INPUT(separator >= 0 && separator < files.vocab(),
                "data.separator = {}: must be none or a token id below the vocabulary, {}", config.separator,
                files.vocab());
  }

  int64_t num_samples(int64_t seq_len) const {
    CHECK(seq_len > 0 && seq_len < files.num_tokens(), "{} tokens hold no sequence of {}", files.num_tokens(), seq_len);
    return (files.num_tokens() - 1) / seq_len;
  }

  int64_t num_stream_steps(int64_t num_rows, int64_t seq_len) const { return num_samples(seq_len) / num_rows; }

  int64_t begin_of(const StreamPlace& p) const {
    const int64_t steps = num_stream_steps(p.num_rows, p.seq_len);
    CHECK(steps > 0 && p.step >= 0 && p.row >= 0 && p.row < p.num_rows, "row {} of {} has no sequence of {} in step {}",
          p.row, p.num_rows, p.seq_len, p.step);
    return (p.row * steps + p.step % steps) * p.seq_len;
  }

  /// Tokens [first, first + count) of the sequence that begins at token `begin`, which is `position` in its document.
  void read(int64_t begin, int64_t position, int64_t first, int64_t count, const SampleSlice& out) const {
    if (count == 0) return;
    const int64_t at = begin + first;
    files.read(at, count, out.tokens);
    std::copy(out.tokens + 1, out.tokens + count, out.targets);
    files.read(at + count, 1, out.targets + count - 1);
    std::fill(out.starts, out.starts + count, uint8_t{0});
    int64_t start = begin - position;  // of the document that holds the token before `at`
    if (separator >= 0 && first > 1) start = std::max(start, files.find_last(id(), begin, at - 1) + 1);
    bool ended = separator >= 0 && first > 0 && files.find_last(id(), at - 1, at) >= 0;
    for (int64_t i = 0; i < count; ++i) {
      if (ended) start = at + i;
      out.starts[i] = ended ? 1 : 0;
      out.positions[i] = at + i - start;
      ended = separator >= 0 && out.tokens[i] == id();
      if (ended) out.targets[i] = -1;
    }
  }

  int32_t id() const { return static_cast<int32_t>(separator); }

  TokenFiles files;
  std::string key, pattern;
  int64_t separator = -1;
};

Dataset::Dataset(const DataConfig& config, const std::string& key, const std::string& pattern)
    : impl_(std::make_unique<Impl>(config, key, pattern)) {}
Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;

int64_t Dataset::num_tokens() const { return impl_->files.num_tokens(); }
int64_t Dataset::vocab() const { return impl_->files.vocab(); }
int64_t Dataset::separator() const { return impl_->separator; }
void Dataset::require(const SequenceLength& length) const {
  CHECK_INPUT(num_tokens() > length.tokens, "{} = {}: must hold at least {} + 1 = {} tokens, but has {}", impl_->key,
              impl_->pattern, length.key, length.tokens + 1, num_tokens());
}
int64_t Dataset::num_samples(int64_t seq_len) const { return impl_->num_samples(seq_len); }

void Dataset::read_train(int64_t sample, uint64_t seed, int64_t seq_len, int64_t first, int64_t count,
                         SampleSlice out) const {
  CHECK(sample >= 0 && first >= 0 && count >= 0 && first + count <= seq_len,
        "tokens [{}, {}) of sample {} are outside a sequence of {}", first, first + count, sample, seq_len);
  const int64_t n = num_samples(seq_len);
  const auto epoch = static_cast<uint64_t>(sample / n);
  // The grid may begin later by the tokens that its cells leave over.
  const int64_t room = num_tokens() - 1 - n * seq_len;
  const auto shift = static_cast<int64_t>(random_bits(seed, kShiftStream, epoch) % static_cast<uint64_t>(room + 1));
  impl_->read(shift + permute(sample % n, n, seed, epoch) * seq_len, 0, first, count, out);
}

void Dataset::read_stream(const StreamPlace& place, int64_t position, int64_t first, int64_t count,
                          SampleSlice out) const {
  impl_->read(impl_->begin_of(place), position, first, count, out);
  if (first == 0 && count > 0) out.starts[0] = position == 0;
}

int64_t Dataset::num_stream_steps(int64_t num_rows, int64_t seq_len) const {
  return impl_->num_stream_steps(num_rows, seq_len);
}

int64_t Dataset::position_after(const StreamPlace& place, int64_t position) const {
  const int64_t begin = impl_->begin_of(place), end = begin + place.seq_len;
  const int64_t last = separator() >= 0 ? impl_->files.find_last(impl_->id(), begin, end) : -1;
  return last >= 0 ? end - 1 - last : position + place.seq_len;
}

void Dataset::read_val(int64_t sample, int64_t seq_len, int64_t first, int64_t count, SampleSlice out) const {
  CHECK(sample >= 0 && sample < num_samples(seq_len) && first >= 0 && count >= 0 && first + count <= seq_len,
        "tokens [{}, {}) of sample {} are outside the {} sequences of {}", first, first + count, sample,
        num_samples(seq_len), seq_len);
  impl_->read(sample * seq_len, 0, first, count, out);
}

}  // namespace baton
