// Tiles, decays and their tree for linear attention by plain float32 arithmetic (linear_attention_general*.cu): for
// checking, and for sizes that the tensor cores' kernels do not take. Either dtype of activations, any K and V; no
// operand is rounded. Every side is treated as having channels of decay, in tiles of 32 channels.
//
// A block has one chunk of one head; thread i has channel i % 32 and tokens i / 32 + 8 n. Shared memory: float32 tiles
// of 64 tokens x 32 channels, rows of 33 numbers against bank conflicts. Decays by the tree of
// kernels/cpu/linear_attention_decay.h: exponents are plain sums of gates, never positive.
#pragma once

#include <cuda_bf16.h>
#include <math_constants.h>

#include "kernels/cuda/linear_attention_arguments.h"

namespace baton::cuda::attention::plain {

constexpr int kThreads = 256;
constexpr int kWidth = 32, kRow = kWidth + 1;  // channels of a tile, and numbers from row to row
constexpr int kStep = kThreads / kWidth, kMine = kChunk / kStep;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void set(float* to, float x) { *to = x; }
__device__ inline void set(__nv_bfloat16* to, float x) { *to = __float2bfloat16(x); }

enum class Side { kKeys, kValues };

/// Tokens [first, first + n) of one sequence and head, inside chunk `chunk`.
struct Stretch {
  int64_t batch, head, chunk, first;
  int n;
};

/// One side's tile: x queries, y keys, and its decays.
struct Tile {
  float x[kChunk][kRow], y[kChunk][kRow];
  float through[kChunk][kRow], after[kChunk][kRow];
};
/// exp of sums of gates over blocks of m tokens: block b of m is row 128 - 128 / m + b.
struct Tree {
  float node[2 * kChunk - 1][kRow];
  bool forget[kChunk][kWidth];
  __device__ float* level(int m) { return node[2 * kChunk - 2 * kChunk / m]; }
  __device__ const float* whole() const { return node[2 * kChunk - 2]; }
};

struct Reader {
  const Arguments& a;
  Stretch at;

  __device__ int64_t offset(int t, int64_t dim) const {
    return ((at.batch * a.T + at.first + t) * a.H + at.head) * dim;
  }
  __device__ int64_t dim(Side side) const { return side == Side::kKeys ? a.K : a.V; }

  __device__ float gate(Side side, int t, int64_t channel) const {
    if (t >= at.n || channel >= dim(side)) return 0;
    if (side == Side::kValues && a.gate != Gate::kBilinear) return 0;
    if (a.starts != nullptr && a.starts[at.batch * a.T + at.first + t] != 0) return -CUDART_INF_F;
    if (side == Side::kValues) return a.gv[offset(t, a.V) + channel];
    if (a.gate == Gate::kNone) return 0;
    if (a.gate == Gate::kFixed) return a.gk[at.head];
    return a.gate == Gate::kScalar ? a.gk[offset(t, 1)] : a.gk[offset(t, a.K) + channel];
  }

  /// Channels col0.. of x or y; zero outside; null is zero.
  template <class T>
  __device__ void read(const void* from, Side side, int64_t col0, float scale, float (&to)[kChunk][kRow]) const {
    const int c = threadIdx.x % kWidth;
    for (int t = threadIdx.x / kWidth; t < kChunk; t += kStep) {
      const bool inside = from != nullptr && t < at.n && col0 + c < dim(side);
      to[t][c] = inside ? scale * to_float(static_cast<const T*>(from)[offset(t, dim(side)) + col0 + c]) : 0.0f;
    }
  }

  /// The tree of a tile, and decays at their leaves: through = the token's own, after = 1. Begins and ends with a
  /// barrier.
  __device__ void make_tree(Side side, int64_t col0, Tree& tree, Tile& tile) const {
    const int c = threadIdx.x % kWidth, row = threadIdx.x / kWidth;
    __syncthreads();
    for (int t = row; t < kChunk; t += kStep) {
      tree.node[t][c] = gate(side, t, col0 + c);
      tree.forget[t][c] = isinf(tree.node[t][c]);
    }
    for (int m = 1; m < kChunk; m *= 2) {
      __syncthreads();
      const float* from = tree.level(m);
      float* to = tree.level(2 * m);
      for (int b = row; b < kChunk / (2 * m); b += kStep) {
        to[b * kRow + c] = from[2 * b * kRow + c] + from[(2 * b + 1) * kRow + c];
      }
    }
    __syncthreads();
    for (int i = row; i < 2 * kChunk - 1; i += kStep) tree.node[i][c] = expf(tree.node[i][c]);
    for (int t = row; t < kChunk; t += kStep) tile.through[t][c] = tree.node[t][c], tile.after[t][c] = 1;
    __syncthreads();
  }
  /// From blocks of m tokens to blocks of twice as many; ends with a barrier.
  __device__ void climb(int m, Tree& tree, Tile& tile) const {
    const int c = threadIdx.x % kWidth;
    const float* nodes = tree.level(m);
    for (int t = threadIdx.x / kWidth; t < kChunk; t += kStep) {
      const float sibling = nodes[(t / m ^ 1) * kRow + c];
      (t & m ? tile.through : tile.after)[t][c] *= sibling;
    }
    __syncthreads();
  }
  __device__ void climb_all(Tree& tree, Tile& tile) const {
    for (int m = 1; m < kChunk; m *= 2) climb(m, tree, tile);
  }
};

__device__ inline Stretch chunk_at(const Arguments& a, int64_t item) {
  const int64_t row = item / a.H;
  Stretch at{row / a.N, item % a.H, row % a.N, 0, 0};
  at.first = at.chunk * kChunk;
  at.n = static_cast<int>(min(static_cast<int64_t>(kChunk), a.T - at.first));
  return at;
}

}  // namespace baton::cuda::attention::plain
