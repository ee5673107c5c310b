// What the stages of linear attention share on the CPU: scratch, tiles of one chunk, and the loop over chunks.
//
// A tile holds the tokens of one chunk and head, [rows, width]: width is K or V padded to whole vectors, rows is n (the
// chunk's tokens) padded to a power of two and to a vector; padding is zero, so it adds nothing to any product.
#pragma once

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "kernels/cpu/vector_math.h"
#include "kernels/linear_attention.h"
#include "runtime/memory.h"

namespace baton::attention {

/// Memory of one thread, kept between calls; tiles are taken once per call and thread, before its loop over chunks.
template <class Real>
class Scratch {
 public:
  Scratch() { next() = 0; }
  Real* take(int64_t count) {
    auto& all = pieces();
    if (next() == all.size()) all.emplace_back();
    Buffer& piece = all[next()++];
    const int64_t bytes = count * static_cast<int64_t>(sizeof(Real));
    if (piece.bytes() < bytes) piece = Buffer(bytes, Device{});
    return static_cast<Real*>(piece.data());
  }

 private:
  static std::vector<Buffer>& pieces() {
    thread_local std::vector<Buffer> all;
    return all;
  }
  static size_t& next() {
    thread_local size_t index = 0;
    return index;
  }
};

/// Tokens [first, first + n) of one sequence and head, inside chunk `chunk`.
struct Stretch {
  int64_t batch, head, chunk, first, n;
};

inline int64_t tree_rows(int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))); }

template <class Real>
int64_t tile_rows(int64_t n) {
  return std::max(tree_rows(n), kLanes<Real>);
}

inline Stretch whole_chunk(const AttentionShape& s, int64_t batch, int64_t head, int64_t chunk) {
  return {batch, head, chunk, chunk * kChunk, std::min(kChunk, s.T - chunk * kChunk)};
}

/// Runs stage.run(stretch) for every chunk, in parallel; each thread makes its own Stage. Heads run innermost, as they
/// lie in memory.
template <class Stage, class... Args>
void for_each_chunk(const AttentionShape& s, const Args&... args) {
  const int64_t num_chunks = s.num_chunks(), num_items = s.B * s.H * num_chunks;
#pragma omp parallel if (num_items > 1)
  {
    Stage stage(args...);
#pragma omp for schedule(static)
    for (int64_t item = 0; item < num_items; ++item) {
      const int64_t row = item / s.H;
      stage.run(whole_chunk(s, row / num_chunks, item % s.H, row % num_chunks));
    }
  }
}

/// The stretch's first token in a tensor [B, T, H, dim].
template <class Real>
Real* token_row(const Tensor& x, const AttentionShape& s, const Stretch& at, int64_t dim) {
  return x.as<Real>() + ((at.batch * s.T + at.first) * s.H + at.head) * dim;
}

template <class Real>
void load_tile(const Tensor& x, const AttentionShape& s, const Stretch& at, int64_t dim, Real scale, Real* tile) {
  const int64_t width = padded<Real>(dim);
  const Real* from = token_row<Real>(x, s, at, dim);
  // Rows of one head lie apart, which the processor's own prefetching follows badly: the same rows of the next chunk
  // are asked for while this one is worked on. An address past the end is harmless.
  constexpr int64_t kLine = 64 / sizeof(Real);
  const int64_t next_chunk = kChunk * s.H * dim;
  for (int64_t t = 0; t < at.n; ++t, from += s.H * dim, tile += width) {
    for (int64_t line = 0; line < dim; line += kLine) __builtin_prefetch(from + next_chunk + line);
    int64_t c = 0;
    for (; c + kLanes<Real> <= dim; c += kLanes<Real>) store(tile + c, scale * load(from + c));
    for (; c < dim; ++c) tile[c] = scale * from[c];
    for (; c < width; ++c) tile[c] = 0;
  }
  std::fill(tile, tile + (tile_rows<Real>(at.n) - at.n) * width, Real{0});
}

template <class Real>
void store_tile(const Real* tile, const AttentionShape& s, const Stretch& at, int64_t dim, const Tensor& x) {
  const int64_t width = padded<Real>(dim);
  Real* to = token_row<Real>(x, s, at, dim);
  for (int64_t t = 0; t < at.n; ++t) std::copy_n(tile + t * width, dim, to + t * s.H * dim);
}

/// State number `index` of a head in AttentionChunks::state.
template <class Real>
Real* state_row(const Tensor& states, const AttentionShape& s, const Stretch& at, int64_t index) {
  return states.as<Real>() + ((at.batch * s.H + at.head) * (s.num_chunks() + 1) + index) * s.K * s.V;
}

template <class Real>
void load_state(const Real* from, const AttentionShape& s, Real* tile) {
  const int64_t width = padded<Real>(s.V);
  for (int64_t row = 0; row < s.K; ++row, tile += width) {
    std::copy_n(from + row * s.V, s.V, tile);
    std::fill(tile + s.V, tile + width, Real{0});
  }
  std::fill(tile, tile + (padded<Real>(s.K) - s.K) * width, Real{0});
}

template <class Real>
void store_state(const Real* tile, const AttentionShape& s, Real* to) {
  for (int64_t row = 0; row < s.K; ++row) std::copy_n(tile + row * padded<Real>(s.V), s.V, to + row * s.V);
}

/// Decay number of chunk `at` in AttentionChunks::decay_k or decay_v.
template <class Real>
Real* decay_row(const Tensor& decay, const AttentionShape& s, const Stretch& at, int64_t dim) {
  return decay.as<Real>() + ((at.batch * s.H + at.head) * s.num_chunks() + at.chunk) * dim;
}

/// y = x * f, or y += x * f, elementwise on `rows` rows; f is a tile of the same width, or a number a row (width 1).
template <bool kAdd, class Real>
void scale_rows(int64_t rows, int64_t width, const Real* x, const Real* f, int64_t f_width, Real* y) {
  if (f_width == width) {
#pragma omp simd
    for (int64_t i = 0; i < rows * width; ++i) y[i] = kAdd ? y[i] + x[i] * f[i] : x[i] * f[i];
    return;
  }
  for (int64_t t = 0; t < rows; ++t) {
    const Real number = f[t];
#pragma omp simd
    for (int64_t i = t * width; i < (t + 1) * width; ++i) y[i] = kAdd ? y[i] + x[i] * number : x[i] * number;
  }
}

}  // namespace baton::attention
