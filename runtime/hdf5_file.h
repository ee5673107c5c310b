// The one owner of HDF5 handles: a file, its groups, datasets and attributes, through the C API.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/tensor.h"

namespace baton {

/// One open file. Every error names the file and what HDF5 found wrong at the innermost place; in a file that is read
/// it is an input error. Methods may be called from several threads, of one or of several objects. Files are never
/// locked: many ranks read one, and what is written bears a name of its own until it is whole.
class Hdf5File {
 public:
  enum class Mode { kRead, kCreate };  // kCreate replaces a file that exists
  Hdf5File(const std::string& path, Mode mode);
  ~Hdf5File();
  Hdf5File(Hdf5File&& other) noexcept;
  Hdf5File& operator=(Hdf5File&& other) noexcept;

  const std::string& path() const { return path_; }
  bool exists(const std::string& name) const;                     // group, dataset or link, whole path
  std::vector<std::string> list(const std::string& group) const;  // names in a group, in name order
  bool is_group(const std::string& name) const;

  Shape shape(const std::string& name) const;
  /// Reads a whole dataset of any integer or float type, converted to the dtype of x; shapes must be equal. Scalars
  /// have Shape{1}.
  void read(const std::string& name, const Tensor& x) const;
  /// Creates a contiguous dataset (and its groups) and writes x, which may be on a device. bfloat16 is stored as a
  /// 2-byte float.
  void write(const std::string& name, const Tensor& x);
  /// Creates a dataset that reads as NaN (integers: -1, 255) where nothing was written, and writes blocks into it: the
  /// elements [start, start + x.shape).
  void create(const std::string& name, const Shape& shape, DType dtype);
  void write_block(const std::string& name, const Shape& start, const Tensor& x);
  /// Creates the virtual dataset `name` of `shape`: rows [first_i, ...) come from dataset `name` of file_i (relative
  /// file names, looked up beside this file); what is missing reads as NaN, or as -1 (255) where dtype is an integer.
  struct Part {
    std::string file;
    int64_t first_row = 0, num_rows = 0;
  };
  void write_virtual(const std::string& name, const Shape& shape, DType dtype, const std::vector<Part>& parts);

  bool has_attribute(const std::string& object, const std::string& name) const;
  int64_t read_int(const std::string& object, const std::string& name) const;
  double read_double(const std::string& object, const std::string& name) const;
  std::string read_string(const std::string& object, const std::string& name) const;
  std::vector<int64_t> read_ints(const std::string& object, const std::string& name) const;
  void write_int(const std::string& object, const std::string& name, int64_t value);
  void write_double(const std::string& object, const std::string& name, double value);
  void write_string(const std::string& object, const std::string& name, const std::string& value);

  /// Flushes to the disk (fsync) and closes; write errors surface here.
  void close();

 private:
  struct Access;
  std::string path_;
  Mode mode_ = Mode::kRead;
  int64_t file_ = -1;
};

}  // namespace baton
