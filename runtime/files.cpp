#include "runtime/files.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "runtime/error.h"

namespace baton {

namespace fs = std::filesystem;

void flush_to_disk(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0, "{} cannot be opened: {}", path, std::strerror(errno));
  // Some network filesystems refuse to flush a directory; they have no way to do better.
  const int error = fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  close(fd);
  CHECK(error == 0, "{} cannot be flushed to the disk: {}", path, std::strerror(error));
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  CHECK(out.good(), "{} cannot be written: {}", path, std::strerror(errno));
  flush_to_disk(path);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in.good() && in.peek() != EOF) text << in.rdbuf();
  CHECK_INPUT(!in.bad() && in.is_open() && !text.bad(), "{} cannot be read: {}", path, std::strerror(errno));
  return text.str();
}

void replace_directory(const std::string& from, const std::string& to) {
  const fs::path parent = fs::path(to).parent_path();
  std::error_code error;
  std::string old;
  if (!fs::exists(to)) {
    fs::rename(from, to, error);
  } else if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    old = from;
  } else {
    // No exchange on this filesystem (NFS): between the two renames neither stands at `to`.
    old = to + ".old";
    fs::remove_all(old, error);
    if (!error) fs::rename(to, old, error);
    if (!error) fs::rename(from, to, error);
  }
  CHECK(!error, "{} cannot be renamed to {}: {}", from, to, error.message());
  flush_to_disk(parent.empty() ? "." : parent.string());
  if (!old.empty()) fs::remove_all(old, error);
}

uint32_t checksum_of(const void* data, size_t bytes) {
  return static_cast<uint32_t>(crc32_z(0, static_cast<const Bytef*>(data), bytes));
}

uint32_t checksum_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> block(size_t{1} << 20);
  uLong sum = 0;
  while (in.good()) {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    sum = crc32_z(sum, reinterpret_cast<const Bytef*>(block.data()), static_cast<size_t>(in.gcount()));
  }
  CHECK_INPUT(in.eof(), "{} cannot be read: {}", path, std::strerror(errno));
  return static_cast<uint32_t>(sum);
}

}  // namespace baton
