// Where tensors live: Buffer owns one piece of memory, Arena lays many named tensors out in one piece.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/stream.h"

namespace baton {

/// Owns `bytes` of memory on a device, aligned to 256. Moves, does not copy. Contents are zero.
class Buffer {
 public:
  Buffer() = default;
  Buffer(int64_t bytes, Device device);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_;
};

/// Pieces of memory taken so far by this process, on the host (a Buffer) and on devices: a step takes none.
int64_t num_allocations();

/// A tensor with its own memory, for tests, tools and small things outside the arena.
struct OwnedTensor {
  OwnedTensor() = default;
  OwnedTensor(const Shape& shape, DType dtype, Device device = {});
  operator const Tensor&() const { return tensor; }  // NOLINT(google-explicit-constructor)
  Buffer buffer;
  Tensor tensor;
};

/// One allocation a device. The layout code runs twice: first on a measuring arena (tensors without data), then on
/// one of the size measured, so that the printed table and the allocation cannot disagree.
class Arena {
 public:
  explicit Arena(Device device) : device_(device) {}  // measures
  Arena(Device device, int64_t bytes);                // allocates

  bool measuring() const { return buffer_.bytes() == 0; }
  Device device() const { return device_; }
  /// A tensor of this group, aligned to 256 bytes. Groups are rows of the memory table: "parameters", "activations".
  Tensor tensor(const std::string& group, const Shape& shape, DType dtype);

  int64_t used_bytes() const { return used_bytes_; }
  const std::map<std::string, int64_t>& bytes_by_group() const { return bytes_by_group_; }

 private:
  Device device_;
  Buffer buffer_;
  int64_t used_bytes_ = 0;
  std::map<std::string, int64_t> bytes_by_group_;
};

/// A tensor seen from the host, for files: x itself on the CPU, else a host copy. download() and upload() copy between
/// the two, after all that the device was given, and wait; both do nothing on the CPU.
class HostView {
 public:
  explicit HostView(const Tensor& x);
  const Tensor& host() const { return copy_.tensor.defined() ? copy_.tensor : x_; }
  void download() const;
  void upload() const;

 private:
  Tensor x_;
  OwnedTensor copy_;
};

/// Copies bytes between tensors of equal shape and dtype; sets bytes to zero. Between host and device, on the device's
/// stream; the host side may be touched again after synchronize().
void copy(const Tensor& from, const Tensor& to, const Stream& stream);
void set_zero(const Tensor& x, const Stream& stream);

}  // namespace baton
