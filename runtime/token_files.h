// TokenFiles: the tokens of files of one format, one behind the other, read by their 64-bit position.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/config.h"

namespace baton {

/// A file in memory, read only: mapped, so that its size does not matter.
class MappedFile {
 public:
  MappedFile(const std::string& key, const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

class TokenFiles {
 public:
  /// As Dataset's constructor.
  TokenFiles(const DataConfig& config, const std::string& key, const std::string& pattern);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t vocab() const { return vocab_; }

  /// Tokens [first, first + count); an id outside the vocabulary is an input error that names file and position.
  void read(int64_t first, int64_t count, int32_t* out) const;
  /// Position of the last `id` in [begin, end), or -1.
  int64_t find_last(int32_t id, int64_t begin, int64_t end) const;

 private:
  struct Part {  // of one file
    std::shared_ptr<MappedFile> file;
    std::vector<int32_t> encoded;  // of spm, where the tokens are not those of the file
    const uint8_t* tokens = nullptr;
    int bytes = 1;  // of one token
    int64_t first = 0, count = 0;
  };
  template <class F>
  void for_each_stretch(int64_t first, int64_t count, F&& f) const;

  std::string key_;
  std::vector<Part> parts_;
  int64_t num_tokens_ = 0, vocab_ = 0;
};

}  // namespace baton
