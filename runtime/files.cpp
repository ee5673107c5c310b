#include "runtime/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/error.h"

namespace baton {

void flush_to_disk(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0, "{} cannot be opened: {}", path, std::strerror(errno));
  // Some network filesystems refuse to flush a directory; they have no way to do better.
  const int error = fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  close(fd);
  CHECK(error == 0, "{} cannot be flushed to the disk: {}", path, std::strerror(error));
}

}  // namespace baton
