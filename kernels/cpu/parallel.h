// Fixed partitions of work: blocks follow from sizes alone, so that no result depends on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace baton {

inline constexpr int64_t kElementBlock = 4096;  // elements of one block of an elementwise loop
inline constexpr int64_t kRowBlock = 64;        // rows whose column sums are formed in the working dtype

inline int64_t num_blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

/// Calls f(first, last) for every block of [0, n). f must not throw.
template <class F>
void for_blocks(int64_t n, int64_t block, const F& f) {
  const int64_t blocks = num_blocks(n, block);
#pragma omp parallel for schedule(static) if (blocks > 1)
  for (int64_t i = 0; i < blocks; ++i) f(i * block, std::min(n, (i + 1) * block));
}

/// term(0) + ... + term(n - 1), as four sums beside each other: one alone would wait for each addition.
template <class F>
double sum_terms(int64_t n, const F& term) {
  const int64_t quarter = n / 4;
  double a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < quarter; ++i) {
    a += term(i);
    b += term(i + quarter);
    c += term(i + 2 * quarter);
    d += term(i + 3 * quarter);
  }
  for (int64_t i = 4 * quarter; i < n; ++i) a += term(i);
  return (a + b) + (c + d);
}

/// sum[j] += parts[0][j] + parts[1][j] + ..., in this order and in double; parts [count, width].
template <class T, class P>
void add_parts(const P* parts, int64_t count, int64_t width, T* sum) {
  constexpr int64_t kColumns = 64;
  for_blocks(width, kColumns, [=](int64_t first, int64_t last) {
    double total[kColumns] = {};
    for (int64_t i = 0; i < count; ++i) {
      const P* part = parts + i * width;
#pragma omp simd
      for (int64_t j = first; j < last; ++j) total[j - first] += part[j];
    }
    for (int64_t j = first; j < last; ++j) sum[j] = static_cast<T>(sum[j] + total[j - first]);
  });
}

}  // namespace baton
