// Scalar functions of the elementwise kernels, written so that loops over them vectorise; stable for any x.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cpu/vector_math.h"

namespace baton {

template <class T>
inline T sigmoid(T x) {
  return T{1} / (T{1} + std::exp(-x));  // exp may overflow to infinity, which gives the right 0
}

/// log(1 + e) for 0 <= e <= 1, with full relative accuracy: 2 atanh(s), s = e / (2 + e) <= 1/3, by its series.
template <class T>
inline T log1p_unit(T e) {
  constexpr int kTerms = std::is_same_v<T, float> ? 7 : 16;  // the next one is below half an ulp
  const T s = e / (T{2} + e), s2 = s * s;
  T sum = T{1} / T{2 * kTerms - 1};
#pragma GCC unroll 16
  for (int i = kTerms - 2; i >= 0; --i) sum = sum * s2 + T{1} / static_cast<T>(2 * i + 1);
  return T{2} * s * sum;
}

/// log(sigmoid(x))
template <class T>
inline T log_sigmoid(T x) {
  return (x < T{0} ? x : T{0}) - log1p_unit(std::exp(-std::fabs(x)));
}

}  // namespace baton
