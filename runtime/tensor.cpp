#include "runtime/tensor.h"

#include <fmt/ranges.h>

namespace baton {

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
      return 2;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

std::string to_string(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
  }
  return "unknown";
}

DType parse_dtype(const std::string& name) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32, DType::kInt64, DType::kUInt8})
    if (name == to_string(dtype)) return dtype;
  CHECK_INPUT(false, "dtype = {}: must be float32, float64 or bfloat16", name);
}

Shape::Shape(std::span<const int64_t> dims) {
  CHECK(dims.size() <= kMaxRank, "a shape has at most {} dimensions, not {}", kMaxRank, dims.size());
  for (int64_t d : dims) {
    CHECK(d >= 0, "a dimension must not be negative, got {}", d);
    dims_[rank_++] = d;
  }
}

int64_t Shape::numel() const {
  int64_t n = rank_ > 0 ? 1 : 0;
  for (int i = 0; i < rank_; ++i)
    CHECK(!__builtin_mul_overflow(n, dims_[i], &n), "a tensor of shape {} has too many elements", str());
  return n;
}

std::string Shape::str() const {
  return fmt::format("[{}]", fmt::join(std::span(dims_.data(), static_cast<size_t>(rank_)), ", "));
}

Shape Shape::with_rows(int64_t rows) const {
  Shape s = *this;
  s.dims_[0] = rows;
  return s;
}

Tensor Tensor::rows(int64_t first, int64_t count) const {
  CHECK(first >= 0 && count >= 0 && first <= dim(0) && count <= dim(0) - first,
        "{} rows from row {} are outside a tensor of shape {}", count, first, shape.str());
  Tensor t = *this;
  t.shape = shape.with_rows(count);
  const int64_t row_bytes = dim(0) > 0 ? bytes() / dim(0) : 0;
  if (data != nullptr) t.data = static_cast<char*>(data) + first * row_bytes;
  return t;
}

Tensor Tensor::view(const Shape& new_shape) const {
  CHECK(new_shape.numel() == numel(), "a tensor of shape {} cannot be viewed as {}", shape.str(), new_shape.str());
  Tensor t = *this;
  t.shape = new_shape;
  return t;
}

void check_tensor(const Tensor& x, const char* name, const Shape& shape, DType dtype) {
  CHECK(x.shape == shape && x.dtype == dtype, "{} must be {} {}, got {} {}", name, to_string(dtype), shape.str(),
        to_string(x.dtype), x.shape.str());
}

}  // namespace baton
