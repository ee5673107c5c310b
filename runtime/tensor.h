// Tensor: a typed, shaped view of memory on a device. It owns nothing; Buffer and Arena do.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "runtime/error.h"

namespace baton {

enum class DType { kFloat32, kFloat64, kBFloat16, kInt32, kInt64, kUInt8 };

int64_t size_of(DType dtype);
std::string to_string(DType dtype);  // "float32", as in configuration keys
DType parse_dtype(const std::string& name);

enum class DeviceType { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// Up to five dimensions, 64-bit each; so is their product.
class Shape {
 public:
  static constexpr int kMaxRank = 5;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int dim) const { return dims_[dim]; }
  int64_t numel() const;
  bool operator==(const Shape&) const = default;
  std::string str() const;  // "[2, 72, 3, 8]"

  /// The same shape with dimension 0 replaced.
  Shape with_rows(int64_t rows) const;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kFloat32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kFloat64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kInt32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kInt64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kUInt8;
}

/// Contiguous, row-major. Copying a Tensor copies the view, not the data.
struct Tensor {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::kFloat32;
  Device device;

  bool defined() const { return shape.rank() > 0; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  int64_t dim(int i) const { return shape[i]; }

  /// Typed pointer; the type must be the tensor's. Only for host code when device is the CPU.
  template <class T>
  T* as() const {
    CHECK(dtype == dtype_of<T>(), "a {} tensor was read as {}", to_string(dtype), to_string(dtype_of<T>()));
    return static_cast<T*>(data);
  }

  /// Rows [first, first + count) of dimension 0.
  Tensor rows(int64_t first, int64_t count) const;
  /// The same elements under another shape of equal count.
  Tensor view(const Shape& new_shape) const;
};

/// Calls f.template operator()<float>() or <double>() by dtype: the one dispatch of CPU operations.
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  if (dtype == DType::kFloat64) return f.template operator()<double>();
  CHECK(dtype == DType::kFloat32, "the CPU computes in float32 or float64, not in {}", to_string(dtype));
  return f.template operator()<float>();
}

/// Throws unless x has this shape and dtype; `name` is used in the message.
void check_tensor(const Tensor& x, const char* name, const Shape& shape, DType dtype);

}  // namespace baton
