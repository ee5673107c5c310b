// What the standard library lacks about files: making sure that they are on the disk, and checksums.
#pragma once

#include <cstdint>
#include <string>

namespace baton {

/// fsync of a file or a directory (which makes the names in it durable).
void flush_to_disk(const std::string& path);

/// Writes a text file anew, flushed.
void write_file(const std::string& path, const std::string& text);

/// The whole file; an input error where it cannot be read.
std::string read_file(const std::string& path);

/// Renames `from` to `to`, in one step also where `to` is a directory with files in it, if the filesystem can; what
/// stood at `to` is then removed. The directory above is flushed.
void replace_directory(const std::string& from, const std::string& to);

/// CRC-32 (that of zlib) of bytes, and of a file.
uint32_t checksum_of(const void* data, size_t bytes);
uint32_t checksum_of_file(const std::string& path);

}  // namespace baton
