// Tiles of the tensor-core kernels: 64 x 64 bfloat16 in shared memory, products of tiles by mma.m16n8k16, copies.
//
// A tile's rows are 128 bytes; the 16-byte piece p of row r lies at p ^ (r % 8), so that ldmatrix reads eight rows of
// one piece without bank conflicts. A block has 256 threads; warp w has rows 16 (w / 2) .. and columns 32 (w % 2) .. of
// a 64 x 64 product, which a thread holds as Accumulator[4][4]: columns 8 n + 2 (lane % 4) + {0, 1}, rows lane / 4 +
// {0, 8}.
#pragma once

#include "kernels/cuda/linear_attention_arguments.h"
#include "kernels/cuda/linear_attention_instructions.cuh"

namespace baton::cuda::attention {

constexpr int kThreads = 256;
constexpr int kTile = 64;
constexpr int kTileBytes = kTile * kTile * 2;
static_assert(kTile == kChunk, "a tile has one row for every token of a chunk");

using Accumulator = float[4][4];

/// Place of element (row, col) of a tile, in elements.
__device__ __forceinline__ int place(int row, int col) {
  return row * kTile + (((col >> 3) ^ (row & 7)) << 3) + (col & 7);
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ float2 load_pair(const Bf16* tile, int row, int col) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(tile + place(row, col)));
}

/// How an operand lies in its tile: rows are rows of the product's operand, or its columns.
enum class Lies { kRows, kColumns };

/// The 16 x 16 piece (m0.., k0..) of the left operand A[m][k]. kColumns: the tile holds A[m][k] at (k, m).
template <Lies kLies>
__device__ __forceinline__ void load_left(const Bf16* tile, int m0, int k0, int lane, uint32_t (&x)[4]) {
  if constexpr (kLies == Lies::kRows) {
    load_matrices(tile + place(m0 + lane % 16, k0 + lane / 16 * 8), x);
  } else {
    load_matrices_transposed(tile + place(k0 + lane % 8 + lane / 16 * 8, m0 + lane / 8 % 2 * 8), x);
  }
}
/// The 16 x 16 piece (k0.., n0..) of the right operand B[k][n]: columns n0.. are x[0], x[1], columns n0 + 8.. x[2],
/// x[3]. kColumns: the tile holds B[k][n] at (n, k).
template <Lies kLies>
__device__ __forceinline__ void load_right(const Bf16* tile, int k0, int n0, int lane, uint32_t (&x)[4]) {
  if constexpr (kLies == Lies::kRows) {
    load_matrices_transposed(tile + place(k0 + lane % 16, n0 + lane / 16 * 8), x);
  } else {
    load_matrices(tile + place(n0 + lane % 8 + lane / 16 * 8, k0 + lane / 8 % 2 * 8), x);
  }
}

/// sum += (left * right), this warp's 16 x 32 part, over the steps [first, last) of 16 along k.
template <Lies kLeft, Lies kRight>
__device__ __forceinline__ void multiply_tiles(const Bf16* left, const Bf16* right, int warp, int lane, int first,
                                               int last, Accumulator& sum) {
  const int m0 = warp / 2 * 16, n0 = warp % 2 * 32;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if (step < first || step >= last) continue;
    uint32_t a[4], b[4];
    load_left<kLeft>(left, m0, step * 16, lane, a);
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      load_right<kRight>(right, step * 16, n0 + n * 8, lane, b);
      multiply(sum[n], a, b[0], b[1]);
      multiply(sum[n + 1], a, b[2], b[3]);
    }
  }
}
__device__ __forceinline__ void clear(Accumulator& sum) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = 0;
  }
}

/// Calls f(row, col, x, y) for this thread's pairs of neighbouring numbers of a product.
template <class F>
__device__ __forceinline__ void for_pairs(int warp, int lane, Accumulator& sum, F&& f) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      f(warp / 2 * 16 + lane / 4 + half * 8, warp % 2 * 32 + n * 8 + lane % 4 * 2, sum[n][2 * half],
        sum[n][2 * half + 1]);
    }
  }
}

/// Tokens [first, first + n) of one sequence and head.
struct Stretch {
  int64_t batch, head, chunk, first;
  int n;
};
__device__ __forceinline__ Stretch chunk_at(const Arguments& a, int64_t item) {
  const int64_t row = item / a.H;
  Stretch at{row / a.N, item % a.H, row % a.N, 0, 0};
  at.first = at.chunk * kChunk;
  at.n = static_cast<int>(min(static_cast<int64_t>(kChunk), a.T - at.first));
  return at;
}
/// Offset of the stretch's first token in a tensor [B, T, H, dim].
__device__ __forceinline__ int64_t token_offset(const Arguments& a, const Stretch& at, int64_t dim) {
  return ((at.batch * a.T + at.first) * a.H + at.head) * dim;
}
__device__ __forceinline__ int64_t state_offset(const Arguments& a, const Stretch& at, int64_t index) {
  return ((at.batch * a.H + at.head) * (a.N + 1) + index) * a.K * a.V;
}

/// Starts to copy columns [col0, col0 + 64) of a stretch into a tile; what lies outside is zero.
__device__ __forceinline__ void copy_tile(const Arguments& a, const void* x, int64_t dim, const Stretch& at, int col0,
                                          Bf16* tile) {
  const Bf16* from = static_cast<const Bf16*>(x) + token_offset(a, at, dim) + col0;
#pragma unroll
  for (int i = 0; i < kTile * kTile / 8 / kThreads; ++i) {
    const int piece = threadIdx.x + i * kThreads, row = piece / 8, col = piece % 8 * 8;
    const bool inside = row < at.n && col0 + col < dim;
    const Bf16* source = inside ? from + row * a.H * dim + col : static_cast<const Bf16*>(x);
    copy_16_bytes(source, inside, tile + place(row, col));
  }
}
/// Writes a tile's columns back to a tensor.
__device__ __forceinline__ void write_tile(const Arguments& a, const Bf16* tile, int64_t dim, const Stretch& at,
                                           int col0, void* x) {
  Bf16* to = static_cast<Bf16*>(x) + token_offset(a, at, dim) + col0;
#pragma unroll
  for (int i = 0; i < kTile * kTile / 8 / kThreads; ++i) {
    const int piece = threadIdx.x + i * kThreads, row = piece / 8, col = piece % 8 * 8;
    if (row < at.n && col0 + col < dim) {
      *reinterpret_cast<uint4*>(to + row * a.H * dim + col) = *reinterpret_cast<const uint4*>(tile + place(row, col));
    }
  }
}

/// 64 x 64 float32 numbers of a state on their way to a bfloat16 tile: a thread has 4 neighbours in rows r + 16 i.
struct StateTile {
  float4 x[4];
  static __device__ __forceinline__ int row(int i) { return threadIdx.x / 16 + 16 * i; }
  static __device__ __forceinline__ int col() { return threadIdx.x % 16 * 4; }

  __device__ __forceinline__ void load(const Arguments& a, const float* state, int row0, int col0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool inside = row0 + row(i) < a.K && col0 + col() < a.V;
      x[i] = inside ? *reinterpret_cast<const float4*>(state + (row0 + row(i)) * a.V + col0 + col())
                    : make_float4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void store(Bf16* tile) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint2*>(tile + place(row(i), col())) = make_uint2(pack(x[i].x, x[i].y), pack(x[i].z, x[i].w));
    }
  }
};

}  // namespace baton::cuda::attention
