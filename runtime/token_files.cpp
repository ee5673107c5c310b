#include "runtime/token_files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/error.h"
#include "runtime/tokenizer.h"

namespace baton {
namespace {

// The token shards of llm.c: a header of 256 int32 (magic, version, token count), then the tokens, little-endian.
struct LlmcKind {
  int32_t magic, version;
  int bytes;
  int64_t vocab;
};
constexpr LlmcKind kLlmcKinds[] = {{20240520, 1, 2, 50257}, {20240801, 7, 4, 128256}};
constexpr int64_t kLlmcHeaderBytes = 1024;
constexpr size_t kEncodeBytes = 1 << 16;  // of text that SentencePiece is given at a time

int32_t header_field(const MappedFile& file, int idx) {
  int32_t value = 0;
  std::memcpy(&value, file.data() + 4 * idx, 4);
  return value;
}

const LlmcKind* find_llmc(const MappedFile& file) {
  if (file.size() < 4) return nullptr;
  for (const auto& kind : kLlmcKinds)
    if (header_field(file, 0) == kind.magic) return &kind;
  return nullptr;
}

/// The number of tokens behind the header. Its own count is 32 bits wide and wraps, so the size decides.
int64_t count_llmc(const std::string& key, const MappedFile& file, const LlmcKind& kind) {
  CHECK_INPUT(file.size() >= kLlmcHeaderBytes, "{} = {}: must hold a token-shard header of {} bytes, but has {} bytes",
              key, file.path(), kLlmcHeaderBytes, file.size());
  CHECK_INPUT(header_field(file, 1) == kind.version, "{} = {}: must be a token shard of version {}, not {}", key,
              file.path(), kind.version, header_field(file, 1));
  const int64_t bytes = file.size() - kLlmcHeaderBytes, count = bytes / kind.bytes;
  const auto claimed = static_cast<uint32_t>(header_field(file, 2));
  CHECK_INPUT(bytes % kind.bytes == 0 && static_cast<uint32_t>(count) == claimed,
              "{} = {}: must hold the {} tokens of its header, but its size gives {}", key, file.path(), claimed,
              count);
  return count;
}

/// Whole lines at a time where they are short enough, and never half a UTF-8 character.
std::vector<int32_t> encode_file(const Tokenizer& tokenizer, const MappedFile& file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.size()));
  std::vector<int32_t> tokens;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(begin + kEncodeBytes, text.size());
    if (end < text.size()) {
      const size_t line_end = text.rfind('\n', end - 1);
      if (line_end != std::string_view::npos && line_end >= begin) {
        end = line_end + 1;
      } else {
        const size_t limit = end;
        while (end > begin + 1 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
        if (end == begin + 1) end = limit;
      }
    }
    const auto part = tokenizer.encode(std::string(text.substr(begin, end - begin)));
    tokens.insert(tokens.end(), part.begin(), part.end());
    begin = end;
  }
  return tokens;
}

std::vector<std::string> match(const std::string& key, const std::string& pattern) {
  CHECK_INPUT(!pattern.empty(), "{} = (empty): must name files", key);
  glob_t found{};
  const int status = glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + (status == 0 ? found.gl_pathc : 0));
  globfree(&found);
  CHECK_INPUT(!paths.empty(), "{} = {}: must match at least one file, but matches none", key, pattern);
  std::sort(paths.begin(), paths.end());
  return paths;
}

int32_t token_at(const uint8_t* tokens, int bytes, int64_t idx) {
  // memcpy, as the mapping promises no more than the alignment of its header.
  if (bytes == 1) return tokens[idx];
  if (bytes == 2) {
    uint16_t id = 0;
    std::memcpy(&id, tokens + 2 * idx, 2);
    return id;
  }
  uint32_t id = 0;
  std::memcpy(&id, tokens + 4 * idx, 4);
  return static_cast<int32_t>(std::min<uint32_t>(id, INT32_MAX));
}

}  // namespace

MappedFile::MappedFile(const std::string& key, const std::string& path) : path_(path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK_INPUT(fd >= 0, "{} = {}: must be a file that can be read ({})", key, path, std::strerror(errno));
  struct stat info {};
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  size_ = regular ? info.st_size : 0;
  void* map = size_ > 0 ? mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  close(fd);
  CHECK_INPUT(regular, "{} = {}: must be a regular file", key, path);
  CHECK_INPUT(size_ > 0, "{} = {}: must not be empty", key, path);
  CHECK_INPUT(map != MAP_FAILED, "{} = {}: must be a file that can be mapped into memory", key, path);
  data_ = static_cast<const uint8_t*>(map);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
}

TokenFiles::TokenFiles(const DataConfig& config, const std::string& key, const std::string& pattern) : key_(key) {
  std::unique_ptr<Tokenizer> tokenizer;
  for (const std::string& path : match(key, pattern)) {
    Part part;
    part.file = std::make_shared<MappedFile>(key, path);
    const LlmcKind* llmc = find_llmc(*part.file);
    const bool as_llmc = config.format == "llmc" || (config.format == "auto" && llmc != nullptr);
    CHECK_INPUT(!as_llmc || llmc != nullptr, "{} = {}: must be a token shard of llm.c, of magic {} or {}", key, path,
                kLlmcKinds[0].magic, kLlmcKinds[1].magic);
    int64_t vocab = 256;
    if (as_llmc) {
      part.count = count_llmc(key, *part.file, *llmc);
      part.tokens = part.file->data() + kLlmcHeaderBytes;
      part.bytes = llmc->bytes;
      vocab = llmc->vocab;
    } else if (config.format == "spm" || (config.format == "auto" && !config.tokenizer.empty())) {
      if (!tokenizer) tokenizer = make_spm_tokenizer("data.tokenizer", config.tokenizer);
      part.encoded = encode_file(*tokenizer, *part.file);
      part.count = static_cast<int64_t>(part.encoded.size());
      part.tokens = reinterpret_cast<const uint8_t*>(part.encoded.data());
      part.bytes = 4;
      vocab = tokenizer->vocab();
    } else {
      part.count = part.file->size();
      part.tokens = part.file->data();
    }
    CHECK_INPUT(parts_.empty() || vocab == vocab_, "{} = {}: must match files of one format, but {} differs from {}",
                key, pattern, path, parts_.front().file->path());
    vocab_ = vocab;
    part.first = num_tokens_;
    num_tokens_ += part.count;
    parts_.push_back(std::move(part));
  }
}

template <class F>
void TokenFiles::for_each_stretch(int64_t first, int64_t count, F&& f) const {
  CHECK(first >= 0 && count >= 0 && first + count <= num_tokens_, "tokens [{}, {}) are outside the {} of {}", first,
        first + count, num_tokens_, key_);
  auto part =
      std::upper_bound(parts_.begin(), parts_.end(), first, [](int64_t t, const Part& p) { return t < p.first; });
  for (--part; count > 0; ++part) {
    const int64_t offset = first - part->first, n = std::min(count, part->count - offset);
    if (n > 0) f(*part, offset, n);
    first += std::max<int64_t>(n, 0);
    count -= std::max<int64_t>(n, 0);
  }
}

void TokenFiles::read(int64_t first, int64_t count, int32_t* out) const {
  for_each_stretch(first, count, [&](const Part& part, int64_t offset, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const int32_t id = token_at(part.tokens, part.bytes, offset + i);
      CHECK_INPUT(id < vocab_, "{} = {}: token {} at position {} must be below the vocabulary, {}", key_,
                  part.file->path(), id, offset + i, vocab_);
      *out++ = id;
    }
  });
}

int64_t TokenFiles::find_last(int32_t id, int64_t begin, int64_t end) const {
  auto part = parts_.rbegin();
  for (int64_t at = end - 1; at >= begin; --at) {
    while (at < part->first) ++part;
    if (token_at(part->tokens, part->bytes, at - part->first) == id) return at;
  }
  return -1;
}

}  // namespace baton
