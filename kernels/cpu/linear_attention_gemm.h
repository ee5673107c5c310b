// Matrix products and transposes of tiles that fit a core's caches, padded to whole vectors: no packing, no call
// overhead, and bits that depend on the sizes alone.
#pragma once

#include "kernels/cpu/vector_math.h"

namespace baton::attention {

enum class Store { kSet, kAdd };

/// A matrix operand by strides: element (i, p) is data[i * row + p * col].
template <class Real>
struct Strided {
  const Real* data;
  int64_t row, col;
};

/// kRows x kVecs vectors of c, held in registers over the whole depth.
template <class Real, int kRows, int kVecs>
inline void gemm_registers(int64_t depth, Strided<Real> a, const Real* b, int64_t ldb, Store how, Real* c,
                           int64_t ldc) {
  constexpr int64_t kL = kLanes<Real>;
  Vec<Real> sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) sum[r][v] = how == Store::kAdd ? load(c + r * ldc + v * kL) : Vec<Real>{};
  }
  for (int64_t p = 0; p < depth; ++p) {
    Vec<Real> row[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) row[v] = load(b + p * ldb + v * kL);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Real x = a.data[r * a.row + p * a.col];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) sum[r][v] += x * row[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) store(c + r * ldc + v * kL, sum[r][v]);
  }
}

template <class Real, int kRows>
inline void gemm_rows(int64_t n, int64_t depth, Strided<Real> a, const Real* b, int64_t ldb, Store how, Real* c,
                      int64_t ldc) {
  constexpr int64_t kL = kLanes<Real>;
  int64_t j = 0;
  for (; j + 2 * kL <= n; j += 2 * kL) gemm_registers<Real, kRows, 2>(depth, a, b + j, ldb, how, c + j, ldc);
  for (; j < n; j += kL) gemm_registers<Real, kRows, 1>(depth, a, b + j, ldb, how, c + j, ldc);
}

/// c [m, n] = (or +=) a [m, depth] b [depth, n]; n is a multiple of the vector's lanes.
template <class Real>
void gemm(int64_t m, int64_t n, int64_t depth, Strided<Real> a, const Real* b, int64_t ldb, Store how, Real* c,
          int64_t ldc) {
  const auto step = [&](auto rows) {
    gemm_rows<Real, decltype(rows)::value>(n, depth, a, b, ldb, how, c, ldc);
    a.data += rows * a.row;
    c += rows * ldc;
    m -= rows;
  };
  while (m >= kRegisterRows) step(std::integral_constant<int, kRegisterRows>{});
  if (m >= 4) step(std::integral_constant<int, 4>{});
  if (m >= 2) step(std::integral_constant<int, 2>{});
  if (m >= 1) step(std::integral_constant<int, 1>{});
}

/// Exchanges element (i, j + kStep) of each pair of rows (i, i + kStep) with element (i + kStep, j).
template <int kStep, class V, size_t... kE>
inline void exchange(V& a, V& b, std::index_sequence<kE...>) {
  constexpr int kL = sizeof...(kE);
  const V low = __builtin_shufflevector(a, b, ((kE & kStep) != 0 ? kL + int{kE} - kStep : int{kE})...);
  b = __builtin_shufflevector(a, b, ((kE & kStep) != 0 ? kL + int{kE} : int{kE} + kStep)...);
  a = low;
}

template <int kStep, class Real>
inline void transpose_step(Vec<Real>* rows) {
  constexpr int kL = kLanes<Real>;
  if constexpr (kStep < kL) {
#pragma GCC unroll 16
    for (int i = 0; i < kL; ++i) {
      if ((i & kStep) == 0) exchange<kStep>(rows[i], rows[i + kStep], std::make_index_sequence<kL>{});
    }
    transpose_step<2 * kStep, Real>(rows);
  }
}

/// y [cols, rows] = x [rows, cols]^T; both multiples of the vector's lanes.
template <class Real>
void transpose(int64_t num_rows, int64_t num_cols, const Real* x, int64_t ldx, Real* y, int64_t ldy) {
  constexpr int64_t kL = kLanes<Real>;
  for (int64_t i = 0; i < num_rows; i += kL) {
    for (int64_t j = 0; j < num_cols; j += kL) {
      Vec<Real> rows[kL];
#pragma GCC unroll 16
      for (int64_t r = 0; r < kL; ++r) rows[r] = load(x + (i + r) * ldx + j);
      transpose_step<1, Real>(rows);
#pragma GCC unroll 16
      for (int64_t r = 0; r < kL; ++r) store(y + (j + r) * ldy + i, rows[r]);
    }
  }
}

}  // namespace baton::attention
