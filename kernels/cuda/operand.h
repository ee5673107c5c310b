// What every launcher does with its operands: checks, typed pointers, the choice of a kernel by dtype, sizes of grids.
#pragma once

#include <climits>
#include <cstdint>
#include <type_traits>

#include "runtime/cuda.h"
#include "runtime/cuda/check.h"

struct __nv_bfloat16;

namespace baton::cuda {

inline cudaStream_t handle_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

/// Throws unless x has this shape and dtype and lies on the stream's device.
inline void check_operand(const Tensor& x, const char* name, const Shape& shape, DType dtype, const Stream& stream) {
  check_tensor(x, name, shape, dtype);
  CHECK(x.device == stream.device, "{} is not on CUDA device {}, where the stream is", name, stream.device.index);
}

/// The same for an operand that may be float32 or bfloat16.
inline void check_operand(const Tensor& x, const char* name, const Shape& shape, const Stream& stream) {
  CHECK(x.dtype == DType::kFloat32 || x.dtype == DType::kBFloat16, "{} must be float32 or bfloat16 on CUDA, got {}",
        name, to_string(x.dtype));
  check_operand(x, name, shape, x.dtype, stream);
}

template <class T>
T* pointer(const Tensor& x) {
  return static_cast<T*>(x.data);
}

/// Calls f.template operator()<float>() or <__nv_bfloat16>().
template <class F>
void with_type(const Tensor& x, const F& f) {
  if (x.dtype == DType::kBFloat16) {
    f.template operator()<__nv_bfloat16>();
  } else {
    CHECK(x.dtype == DType::kFloat32, "CUDA computes in float32 or bfloat16, not in {}", to_string(x.dtype));
    f.template operator()<float>();
  }
}

/// Whether eight elements from a multiple of eight on can be moved 16 bytes at a time, in each of the tensors.
template <class... Pointers>
bool aligned(const Pointers*... p) {
  return ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...);
}

/// Blocks that take `each` of n things.
inline unsigned num_blocks(int64_t n, int64_t each) {
  const int64_t blocks = (n + each - 1) / each;
  CHECK(blocks <= INT_MAX, "{} elements are more than one launch takes", n);
  return static_cast<unsigned>(blocks);
}

}  // namespace baton::cuda
