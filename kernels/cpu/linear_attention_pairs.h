// Pairs of tokens i > j inside one chunk: scores of a query side against a key side, and their use.
//   scores:  p_ij = sum_c x_ic y_jc D_ijc      apply:  dx_i = sum_j p_ij y_j * D_ij,  dy_j = sum_i p_ij x_i * D_ij
// where D is the decay between j and i of that side. Keys (q, k) and values (dout, v) are the same to this code. Where
// D has channels it goes level by level (Decay::climb); elsewhere it is left to a matrix of weights over p.
#pragma once

#include "kernels/cpu/linear_attention_decay.h"

namespace baton::attention {

template <class Real>
class Pairs {
 public:
  Pairs(Decay<Real>& decay, int64_t dim, Scratch<Real>& scratch)
      : decay_(decay), width_(padded<Real>(dim)), columns_(scratch.take(width_ * kChunk)) {
    if (!decay.channels()) return;
    right_ = scratch.take(kHalf * width_);
    left_ = scratch.take(kHalf * width_);
    right_sum_ = scratch.take(kHalf * width_);
    left_sum_ = scratch.take(kHalf * width_);
    group_ = scratch.take(kHalf * kHalf);
  }

  /// p [kChunk, kChunk] = scores, right for i > j. With channels the rest is 0; without, `weight` (see Decay::weights)
  /// is a factor where not null, and what is above the diagonal's square of one vector is not touched.
  void scores(int64_t n, const Real* x, const Real* y, const Real* weight, Real* p) {
    if (decay_.channels()) {
      std::fill(p, p + tile_rows<Real>(n) * kChunk, Real{0});
      decay_.climb([&](int64_t m) { level_scores(n, m, x, y, p); });
      return;
    }
    const int64_t rows = tile_rows<Real>(n);
    transpose<Real>(rows, width_, y, width_, columns_, kChunk);
    for (int64_t i = 0; i < rows; i += kLanes<Real>) {
      gemm<Real>(kLanes<Real>, i + kLanes<Real>, width_, {x + i * width_, width_, 1}, columns_, kChunk, Store::kSet,
                 p + i * kChunk, kChunk);
      for (int64_t r = i; weight != nullptr && r < i + kLanes<Real>; ++r) {
#pragma omp simd
        for (int64_t j = 0; j < i + kLanes<Real>; ++j) p[r * kChunk + j] *= weight[r * kChunk + j];
      }
    }
  }

  /// dx += and dy +=, each where not null.
  void apply(int64_t n, const Real* p, const Real* x, const Real* y, Real* dx, Real* dy) {
    if (decay_.channels()) {
      decay_.climb([&](int64_t m) { level_apply(n, m, p, x, y, dx, dy); });
      return;
    }
    for (int64_t i = 0; i < n; i += kLanes<Real>) {
      const int64_t rows = std::min(kLanes<Real>, n - i);
      if (dx != nullptr) {
        gemm<Real>(rows, width_, i + rows, {p + i * kChunk, kChunk, 1}, y, width_, Store::kAdd, dx + i * width_,
                   width_);
      }
      if (dy != nullptr) {
        gemm<Real>(rows, width_, n - i, {p + i * kChunk + i, 1, kChunk}, x + i * width_, width_, Store::kAdd,
                   dy + i * width_, width_);
      }
    }
  }

 private:
  static constexpr int64_t kHalf = kChunk / 2;

  /// Rows of one half of each block at level m, gathered; row r of them is token `token(r, m, half)`.
  static int64_t token(int64_t r, int64_t m, int64_t half) { return r / m * 2 * m + half * m + r % m; }

  void gather(int64_t rows, int64_t m, const Real* x, int64_t half, const Real* decay, Real* y) const {
    const int64_t run = std::min(m, rows);
    for (int64_t r = 0; r < rows; r += run) {
      const int64_t at = token(r, m, half) * width_;
      scale_rows<false>(run, width_, x + at, decay + at, width_, y + r * width_);
    }
  }

  void level_scores(int64_t n, int64_t m, const Real* x, const Real* y, Real* p) {
    const int64_t half_rows = tree_rows(n) / 2, rows = std::max(half_rows, kLanes<Real>);
    gather(half_rows, m, x, 1, decay_.through(), right_);
    gather(half_rows, m, y, 0, decay_.after(), left_);
    std::fill(right_ + half_rows * width_, right_ + rows * width_, Real{0});
    std::fill(left_ + half_rows * width_, left_ + rows * width_, Real{0});
    transpose<Real>(rows, width_, left_, width_, columns_, kHalf);
    const int64_t group = std::max(m, kLanes<Real>);  // blocks narrower than a vector share one product
    for (int64_t g = 0; g < half_rows; g += group) {
      gemm<Real>(group, group, width_, {right_ + g * width_, width_, 1}, columns_ + g, kHalf, Store::kSet, group_,
                 kHalf);
      for (int64_t r = g; r < std::min(g + group, half_rows); ++r) {
        const int64_t j = r / m * m;
        Real* to = p + token(r, m, 1) * kChunk + token(j, m, 0);
        const Real* from = group_ + (r - g) * kHalf + (j - g);
        for (int64_t c = 0; c < m; ++c) to[c] = from[c];
      }
    }
  }

  void level_apply(int64_t n, int64_t m, const Real* p, const Real* x, const Real* y, Real* dx, Real* dy) {
    const int64_t half_rows = tree_rows(n) / 2;
    if (dx != nullptr) gather(half_rows, m, y, 0, decay_.after(), left_);
    if (dy != nullptr) gather(half_rows, m, x, 1, decay_.through(), right_);
    for (int64_t r = 0; r < half_rows; r += m) {
      const int64_t i = token(r, m, 1), j = token(r, m, 0);
      const Real* block = p + i * kChunk + j;
      if (dx != nullptr) {
        gemm<Real>(m, width_, m, {block, kChunk, 1}, left_ + r * width_, width_, Store::kSet, right_sum_, width_);
        scale_rows<true>(m, width_, right_sum_, decay_.through() + i * width_, width_, dx + i * width_);
      }
      if (dy != nullptr) {
        gemm<Real>(m, width_, m, {block, 1, kChunk}, right_ + r * width_, width_, Store::kSet, left_sum_, width_);
        scale_rows<true>(m, width_, left_sum_, decay_.after() + j * width_, width_, dy + j * width_);
      }
    }
  }

  Decay<Real>& decay_;
  int64_t width_;
  Real* columns_;  // the key side, one column a token
  Real* right_ = nullptr;
  Real* left_ = nullptr;
  Real* right_sum_ = nullptr;
  Real* left_sum_ = nullptr;
  Real* group_ = nullptr;
};

}  // namespace baton::attention
