// What the standard library lacks about files: making sure that they are on the disk.
#pragma once

#include <string>

namespace baton {

/// fsync of a file or a directory (which makes the names in it durable).
void flush_to_disk(const std::string& path);

}  // namespace baton
