// Helpers of the kernel tests: filled tensors, relative RMS, central differences, thread counts.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "runtime/memory.h"
#include "runtime/rng.h"

namespace baton {

/// A new tensor of normal numbers times `scale`, the same at either precision up to rounding.
template <class T>
OwnedTensor random_tensor(const Shape& shape, uint64_t stream, double scale = 1.0) {
  OwnedTensor x(shape, dtype_of<T>());
  for (int64_t i = 0; i < shape.numel(); ++i)
    x.tensor.as<T>()[i] = static_cast<T>(static_cast<float>(scale * random_normal(7, stream, i)));
  return x;
}

template <class T>
OwnedTensor nan_tensor(const Shape& shape) {
  OwnedTensor x(shape, dtype_of<T>());
  std::fill_n(x.tensor.as<T>(), shape.numel(), std::numeric_limits<T>::quiet_NaN());
  return x;
}

template <class T>
OwnedTensor int_tensor(const Shape& shape, const std::vector<int64_t>& values) {
  OwnedTensor x(shape, dtype_of<T>());
  for (size_t i = 0; i < values.size(); ++i) x.tensor.as<T>()[i] = static_cast<T>(values[i]);
  return x;
}

inline OwnedTensor clone(const Tensor& x) {
  OwnedTensor y(x.shape, x.dtype);
  copy(x, y, Stream{});
  return y;
}

inline std::vector<double> to_doubles(const Tensor& x) {
  return dispatch_float(x.dtype, [&]<class T>() { return std::vector<double>(x.as<T>(), x.as<T>() + x.numel()); });
}

/// ||x - reference|| / ||reference||, absolute where the reference is 0; infinite where x holds a NaN.
inline double relative_rms(const std::vector<double>& x, const std::vector<double>& reference) {
  EXPECT_EQ(x.size(), reference.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    error += (x[i] - reference[i]) * (x[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  const double value = std::sqrt(norm > 0 ? error / norm : error);
  return std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
}

inline double relative_rms(const Tensor& x, const std::vector<double>& reference) {
  return relative_rms(to_doubles(x), reference);
}

/// Tolerance of a kernel against a plain loop in double.
template <class T>
constexpr double kTolerance = std::is_same_v<T, float> ? 1e-6 : 1e-14;

/// Central differences are good to about step^2.
inline constexpr double kDifferenceTolerance = 1e-7;

/// d loss / d x by central differences; x is float64 and restored.
inline std::vector<double> numeric_gradient(const Tensor& x, const std::function<double()>& loss) {
  constexpr double kStep = 1e-5;
  std::vector<double> gradient(x.numel());
  for (int64_t i = 0; i < x.numel(); ++i) {
    double& value = x.as<double>()[i];
    const double kept = value;
    value = kept + kStep;
    const double up = loss();
    value = kept - kStep;
    gradient[i] = (up - loss()) / (2 * kStep);
    value = kept;
  }
  return gradient;
}

inline double dot(const Tensor& x, const Tensor& y) {
  const auto a = to_doubles(x), b = to_doubles(y);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Runs `outputs` on 1, 2 and 3 threads and expects the same bytes.
inline void expect_same_on_any_threads(const std::function<std::vector<OwnedTensor>()>& outputs) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::vector<OwnedTensor> expected = outputs();
  for (int threads : {2, 3}) {
    omp_set_num_threads(threads);
    const std::vector<OwnedTensor> got = outputs();
    for (size_t i = 0; i < expected.size(); ++i) {
      const Tensor &a = expected[i].tensor, &b = got[i].tensor;
      EXPECT_EQ(0, std::memcmp(a.data, b.data, a.bytes())) << "output " << i << " on " << threads << " threads";
    }
  }
  omp_set_num_threads(before);
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  if (a.shape != b.shape || a.dtype != b.dtype) return false;
  return a.bytes() == 0 || std::memcmp(a.data, b.data, a.bytes()) == 0;  // memcmp takes no null pointer
}

using FloatTypes = ::testing::Types<float, double>;

}  // namespace baton
