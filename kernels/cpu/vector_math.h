// Vectors as wide as the processor's registers, and the exponential on whole arrays.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

// glibc's vector exponentials (libmvec). math.h declares them under -ffast-math only, which would give up -inf; the
// vector versions themselves map -inf to 0 and NaN to NaN.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
extern "C" {
__attribute__((simd("notinbranch"))) float expf(float) noexcept;
__attribute__((simd("notinbranch"))) double exp(double) noexcept;
}
#endif

namespace baton {

/// y[i] = exp(x[i]); x may be y.
inline void exp_all(int64_t n, const float* x, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = ::expf(x[i]);
}
inline void exp_all(int64_t n, const double* x, double* y) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = ::exp(x[i]);
}

/// A register of Real. Longer vectors are taken apart by way of memory: AVX2 was 17 times slower with 64 bytes.
#if defined(__AVX512F__)
#define BATON_VECTOR_BYTES 64
#elif defined(__AVX__)
#define BATON_VECTOR_BYTES 32
#else
#define BATON_VECTOR_BYTES 16
#endif
template <class Real>
struct VecType;
template <>
struct VecType<float> {
  using Type = float __attribute__((vector_size(BATON_VECTOR_BYTES)));
};
template <>
struct VecType<double> {
  using Type = double __attribute__((vector_size(BATON_VECTOR_BYTES)));
};
template <class Real>
using Vec = typename VecType<Real>::Type;
template <class Real>
inline constexpr int64_t kLanes = BATON_VECTOR_BYTES / sizeof(Real);
/// Rows of a product that registers hold, of two vectors each: half of the registers that there are.
inline constexpr int kRegisterRows = BATON_VECTOR_BYTES == 64 ? 8 : 4;

template <class Real>
inline Vec<Real> load(const Real* p) {
  Vec<Real> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class Real>
inline void store(Real* p, const Vec<Real>& v) {
  std::memcpy(p, &v, sizeof v);
}

/// x rounded up to whole vectors.
template <class Real>
constexpr int64_t padded(int64_t x) {
  return (x + kLanes<Real> - 1) / kLanes<Real> * kLanes<Real>;
}

}  // namespace baton
