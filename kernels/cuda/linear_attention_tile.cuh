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
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ __forceinline__ float2 load_pair(const Bf16* tile, int row, int col) {
  return unpack(*reinterpret_cast<const uint32_t*>(tile + place(row, col)));
}
/// Two neighbours of a tile's row, rounded.
__device__ __forceinline__ void put_pair(Bf16* tile, int row, int col, float2 x) {
  *reinterpret_cast<uint32_t*>(tile + place(row, col)) = pack(x.x, x.y);
}

__device__ __forceinline__ float2 rounded(float2 x) { return unpack(pack(x.x, x.y)); }

/// How an operand lies in its tile: rows are rows of the product's operand, or its columns.
enum class Lies { kRows, kColumns };

/// Address of this lane's row for ldmatrix of a 16 x 16 piece at (r0, c0), multiples of 16. Since a tile begins at a
/// multiple of 128 bytes, the piece's column only flips bits of an offset that is the lane's alone.
template <Lies kOrder>
__device__ __forceinline__ uint32_t piece_address(const Bf16* tile, int r0, int c0, int lane) {
  const int row = kOrder == Lies::kRows ? lane % 16 : lane % 8 + lane / 16 * 8;
  const int piece = kOrder == Lies::kRows ? lane / 16 : lane / 8 % 2;
  const uint32_t offset = row * (kTile * 2) + ((piece ^ (lane % 8)) << 4);
  return shared_address(tile) + r0 * (kTile * 2) + (offset ^ (c0 * 2));
}

/// The 16 x 16 piece (m0.., k0..) of the left operand A[m][k]. kColumns: the tile holds A[m][k] at (k, m).
template <Lies kLies>
__device__ __forceinline__ void load_left(const Bf16* tile, int m0, int k0, int lane, uint32_t (&x)[4]) {
  if constexpr (kLies == Lies::kRows) {
    load_matrices(piece_address<Lies::kRows>(tile, m0, k0, lane), x);
  } else {
    load_matrices_transposed(piece_address<Lies::kColumns>(tile, k0, m0, lane), x);
  }
}
/// The 16 x 16 piece (k0.., n0..) of the right operand B[k][n]: columns n0.. are x[0], x[1], columns n0 + 8.. x[2],
/// x[3]. kColumns: the tile holds B[k][n] at (n, k).
template <Lies kLies>
__device__ __forceinline__ void load_right(const Bf16* tile, int k0, int n0, int lane, uint32_t (&x)[4]) {
  if constexpr (kLies == Lies::kRows) {
    load_matrices_transposed(piece_address<Lies::kRows>(tile, k0, n0, lane), x);
  } else {
    load_matrices(piece_address<Lies::kColumns>(tile, n0, k0, lane), x);
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
/// item: less than 2^32, as blocks are; divisions of 64 bits would take hundreds of instructions.
__device__ __forceinline__ Stretch chunk_at(const Arguments& a, int64_t item) {
  const auto index = static_cast<uint32_t>(item), heads = static_cast<uint32_t>(a.H), N = static_cast<uint32_t>(a.N);
  const uint32_t row = index / heads;
  Stretch at{row / N, index % heads, row % N, 0, 0};
  at.first = at.chunk * kChunk;
  at.n = static_cast<int>(min(static_cast<int64_t>(kChunk), a.T - at.first));
  return at;
}
/// Of a part, in which batches and chunks are numbered from 0.
__device__ __forceinline__ Stretch part_chunk_at(const Arguments& a, uint32_t batch, uint32_t head, uint32_t chunk) {
  Stretch at{a.first_batch + batch, head, a.first_chunk + chunk, 0, 0};
  at.first = at.chunk * kChunk;
  at.n = static_cast<int>(min(static_cast<int64_t>(kChunk), a.T - at.first));
  return at;
}
/// Row of channels of the stretch's token t in tensors [B, T, H, dim]; rows, of 16 bytes and more, are fewer than 2^32.
__device__ __forceinline__ uint32_t row_at(const Arguments& a, const Stretch& at, int t) {
  const auto T = static_cast<uint32_t>(a.T), H = static_cast<uint32_t>(a.H);
  const uint32_t token = static_cast<uint32_t>(at.batch) * T + static_cast<uint32_t>(at.first);
  return token * H + static_cast<uint32_t>(at.head) + static_cast<uint32_t>(t) * H;
}
/// A channel of such a row.
template <class T>
__device__ __forceinline__ T* channel_at(T* x, uint32_t row, int64_t dim, int channel) {
  return x + channel + static_cast<uint64_t>(row) * static_cast<uint32_t>(dim);
}
/// Offset of the stretch's first token in such a tensor.
__device__ __forceinline__ int64_t token_offset(const Arguments& a, const Stretch& at, int64_t dim) {
  return static_cast<int64_t>(static_cast<uint64_t>(row_at(a, at, 0)) * static_cast<uint32_t>(dim));
}
__device__ __forceinline__ int64_t state_offset(const Arguments& a, const Stretch& at, int64_t index) {
  return ((at.batch * a.H + at.head) * (a.N + 1) + index) * a.K * a.V;
}

/// Calls f(i, row): this thread's pieces of 16 bytes of a tile; piece i begins at (row, piece_col()), and in the tile
/// at place(piece_row(), piece_col()) + i * kPieceStep.
template <int kNumThreads, class F>
__device__ __forceinline__ void for_pieces(F&& f) {
#pragma unroll
  for (int i = 0; i < kTile * 8 / kNumThreads; ++i) f(i, static_cast<int>(threadIdx.x) / 8 + i * (kNumThreads / 8));
}
template <int kNumThreads>
constexpr int kPieceStep = kNumThreads / 8 * kTile;
__device__ __forceinline__ int piece_row() { return threadIdx.x / 8; }
__device__ __forceinline__ int piece_col() { return threadIdx.x % 8 * 8; }

/// Starts to copy columns [col0, col0 + 64) of a stretch into a tile; what lies outside is zero.
template <int kNumThreads = kThreads>
__device__ __forceinline__ void copy_tile(const Arguments& a, const void* x, int64_t dim, const Stretch& at, int col0,
                                          Bf16* tile) {
  const int64_t stride = a.H * dim;
  const Bf16* from = static_cast<const Bf16*>(x) + token_offset(a, at, dim) + piece_row() * stride + col0 + piece_col();
  Bf16* to = tile + place(piece_row(), piece_col());
  const bool column = col0 + piece_col() < dim;
  for_pieces<kNumThreads>([&](int i, int row) {
    const bool inside = column && row < at.n;
    copy_16_bytes(inside ? from : static_cast<const Bf16*>(x), inside, to + i * kPieceStep<kNumThreads>);
    from += kNumThreads / 8 * stride;
  });
}
/// Starts to copy rows of kTiles tiles side by side, by kNumThreads threads, `from` this thread's first piece; rows
/// from n on are zero.
template <int kNumThreads, int kTiles>
__device__ __forceinline__ void copy_rows(int thread, const Bf16* from, int64_t stride, int n, Bf16* tiles) {
  Bf16* to = tiles + place(thread / 8, thread % 8 * 8);
#pragma unroll
  for (int i = 0; i < kTile * 8 / kNumThreads; ++i) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      copy_16_bytes(from + j * kTile, thread / 8 + i * (kNumThreads / 8) < n,
                    to + i * kPieceStep<kNumThreads> + j * kTile * kTile);
    }
    from += kNumThreads / 8 * stride;
  }
}
/// Starts to copy 64 rows of 64 numbers, `stride` apart, into a tile.
template <int kNumThreads = kThreads>
__device__ __forceinline__ void copy_square(const Bf16* from, int stride, Bf16* tile) {
  from += piece_row() * stride + piece_col();
  Bf16* to = tile + place(piece_row(), piece_col());
  for_pieces<kNumThreads>([&](int i, int) {
    copy_16_bytes(from, true, to + i * kPieceStep<kNumThreads>);
    from += kNumThreads / 8 * stride;
  });
}
/// Writes a tile's columns back to a tensor.
__device__ __forceinline__ void write_tile(const Arguments& a, const Bf16* tile, int64_t dim, const Stretch& at,
                                           int col0, void* x) {
  const int64_t stride = a.H * dim;
  Bf16* to = channel_at(static_cast<Bf16*>(x), row_at(a, at, piece_row()), dim, col0 + piece_col());
  const Bf16* from = tile + place(piece_row(), piece_col());
  if (col0 + piece_col() >= dim) return;
  for_pieces<kThreads>([&](int i, int row) {
    if (row < at.n) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from + i * kPieceStep<kThreads>);
    to += kThreads / 8 * stride;
  });
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
