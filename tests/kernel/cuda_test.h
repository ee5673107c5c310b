// Helpers of the CUDA tests. Every operand exists twice: on the device in the dtype under test, and on the host in
// float64 with the same values, where the CPU's operation makes the reference.
#pragma once

#include "kernels/elementwise.h"
#include "runtime/cuda.h"
#include "tests/kernel/op_test.h"

namespace baton {

inline constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16, kF64 = DType::kFloat64;
inline constexpr Device kGpu{DeviceType::kCuda, 0};

/// A stream that does not wait for the default one, so that a missing order shows.
inline const Stream& gpu_stream() {
  static const cuda::OwnedStream stream(0, false);
  return stream.stream();
}

inline OwnedTensor converted(const Tensor& host, DType dtype) {
  OwnedTensor y(host.shape, dtype);
  convert(host, y, Stream{});
  return y;
}

inline OwnedTensor to_device(const Tensor& host) {
  OwnedTensor x(host.shape, host.dtype, kGpu);
  copy(host, x, gpu_stream());
  synchronize(gpu_stream());
  return x;
}

inline OwnedTensor to_host(const Tensor& device) {
  OwnedTensor x(device.shape, device.dtype);
  copy(device, x, gpu_stream());
  synchronize(gpu_stream());
  return x;
}

inline std::vector<double> device_doubles(const Tensor& device) { return to_doubles(converted(to_host(device), kF64)); }

inline bool same_device_bytes(const Tensor& a, const Tensor& b) { return same_bytes(to_host(a), to_host(b)); }

/// One operand on both sides. Undefined where it was made with `present` false.
struct Operand {
  Operand() = default;
  Operand(const Tensor& values, DType dtype) {
    const OwnedTensor rounded = converted(values, dtype);
    host = converted(rounded, kF64);
    device = to_device(rounded);
  }
  OwnedTensor host, device;
};

inline Operand random_operand(const Shape& shape, DType dtype, uint64_t stream, double scale = 1.0) {
  return {random_tensor<double>(shape, stream, scale), dtype};
}
inline Operand nan_operand(const Shape& shape, DType dtype) { return {nan_tensor<double>(shape), dtype}; }

/// Tolerances against the reference on the same, rounded inputs: what storing the result costs.
inline double cuda_tolerance(DType dtype) { return dtype == kBF16 ? 5e-3 : 1e-5; }

/// Of sums that tensor cores make from bfloat16 operands: they cut what does not fit float32 instead of rounding it.
inline double tensor_core_tolerance(DType result) { return result == kBF16 ? cuda_tolerance(kBF16) : 1e-4; }

inline void expect_close(const Operand& x, const std::string& what, double tolerance) {
  EXPECT_LT(relative_rms(device_doubles(x.device), to_doubles(x.host)), tolerance) << what;
}
inline void expect_close(const Operand& x, const std::string& what) {
  expect_close(x, what, cuda_tolerance(x.device.tensor.dtype));
}

/// Runs `outputs` twice and expects the same bytes.
inline void expect_repeats(const std::function<std::vector<OwnedTensor>()>& outputs, const std::string& what) {
  const std::vector<OwnedTensor> first = outputs(), second = outputs();
  for (size_t i = 0; i < first.size(); ++i)
    EXPECT_TRUE(same_device_bytes(first[i], second[i])) << what << ": output " << i << " differs between two runs";
}

inline const std::vector<DType>& gpu_dtypes() {
  static const std::vector<DType> dtypes{kF32, kBF16};
  return dtypes;
}

}  // namespace baton
