// Products of a left operand in registers with a tile in shared memory: by warps (mma, sm_80 and newer), or, in code
// for sm_90a, by warpgroups of four warps (wgmma), which read the tile without loading it and run beside the warps. A
// warp has 16 rows of the sums and of the left operand; whose rows these are is its own affair, in both ways.
#pragma once

#include "kernels/cuda/linear_attention_tile.cuh"

namespace baton::cuda::attention {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kWarpgroups = true;
#else
constexpr bool kWarpgroups = false;
#endif

/// A tile begins where the pieces of its rows are in the order that wgmma calls 128-byte swizzle.
constexpr int kTileAlignment = 1024;

/// From here on a warpgroup's threads hold so many registers: more, once others hold fewer.
template <bool kMore, int kRegisters>
__device__ __forceinline__ void hold_registers() {
  if constexpr (kMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
  }
}

/// An operand of a wgmma: 16 rows of B[k][n] from k0, columns from n0. Eight rows of a tile are 1,024 bytes.
template <Lies kLies>
__device__ __forceinline__ uint64_t operand(const Bf16* tile, int k0, int n0) {
  const int row = kLies == Lies::kRows ? k0 : n0, col = kLies == Lies::kRows ? n0 : k0;
  constexpr uint64_t kSwizzle128 = 1ull << 62, kEightRows = static_cast<uint64_t>(1024 >> 4) << 32;
  // Shifted one by one, so that one address serves all operands of a tile; in 32 bits, as there is no carry.
  return kSwizzle128 | kEightRows | (shared_address(tile) >> 4) + (row * (kTile * 2) + col * 2 >> 4);
}

#define BATON_SUMS(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])

/// Starts c += a b, 64 x 8 kBlocks += 64 x 16 times 16 x 8 kBlocks, by a warpgroup.
template <int kBlocks, Lies kLies>
__device__ __forceinline__ void start_multiply(float (*c)[4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kBlocks == 4 || kBlocks == 8);
  if constexpr (kBlocks == 4) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}\n"
        : BATON_SUMS(c, 0), BATON_SUMS(c, 1), BATON_SUMS(c, 2), BATON_SUMS(c, 3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1), "n"(kLies == Lies::kRows ? 1 : 0));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, "
        "%34, %35}, %36, p, 1, 1, %38;\n}\n"
        : BATON_SUMS(c, 0), BATON_SUMS(c, 1), BATON_SUMS(c, 2), BATON_SUMS(c, 3), BATON_SUMS(c, 4), BATON_SUMS(c, 5),
          BATON_SUMS(c, 6), BATON_SUMS(c, 7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1), "n"(kLies == Lies::kRows ? 1 : 0));
  }
}

/// The same, both from shared memory.
template <Lies kLeft, Lies kRight, int kBlocks>
__device__ __forceinline__ void start_multiply(float (&c)[kBlocks][4], uint64_t a, uint64_t b) {
  static_assert(kBlocks == 4 || kBlocks == 8);
  constexpr int kTransposeLeft = kLeft == Lies::kColumns ? 1 : 0, kTransposeRight = kRight == Lies::kRows ? 1 : 0;
  if constexpr (kBlocks == 4) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15}, %16, %17, p, 1, 1, %19, %20;\n}\n"
        : BATON_SUMS(c, 0), BATON_SUMS(c, 1), BATON_SUMS(c, 2), BATON_SUMS(c, 3)
        : "l"(a), "l"(b), "r"(1), "n"(kTransposeLeft), "n"(kTransposeRight));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, "
        "1, 1, %35, %36;\n}\n"
        : BATON_SUMS(c, 0), BATON_SUMS(c, 1), BATON_SUMS(c, 2), BATON_SUMS(c, 3), BATON_SUMS(c, 4), BATON_SUMS(c, 5),
          BATON_SUMS(c, 6), BATON_SUMS(c, 7)
        : "l"(a), "l"(b), "r"(1), "n"(kTransposeLeft), "n"(kTransposeRight));
  }
}
#undef BATON_SUMS

/// `pack`, every time anew, so that no register keeps it for the next time.
__device__ __forceinline__ uint32_t pack_anew(float low, float high) {
  uint32_t pair;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Tiles that this thread wrote or whose copies it waited for can be read by products after the next barrier.
__device__ __forceinline__ void publish_tiles() {
  if constexpr (kWarpgroups) asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
/// Sends a published tile as it lies; it must not change before `wait_sent` and a barrier.
__device__ __forceinline__ void send_tile(const Bf16* tile, Bf16* to) {
  if constexpr (kWarpgroups) {
    if (threadIdx.x == 0) send_bulk(tile, kTileBytes, to);
  } else {
#pragma unroll
    for (int i = 0; i < kTile * kTile; i += kThreads * 8) {
      const int at = i + threadIdx.x * 8;
      *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(tile + at);
    }
  }
}
__device__ __forceinline__ void wait_sent() {
  if (kWarpgroups && threadIdx.x == 0) wait_bulks();
}
/// Before products whose sums or left operands registers got since the last ones.
__device__ __forceinline__ void begin_products() {
  if constexpr (kWarpgroups) asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  if constexpr (kWarpgroups) asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/// Waits until at most `pending` (0 or 1) of the committed groups of products are under way.
__device__ __forceinline__ void wait_products(int pending = 0) {
  if constexpr (!kWarpgroups) return;
  if (pending == 0) {
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
  } else {
    asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
  }
}

/// sum[first ..] += left B, with 16 rows of B from k0 and 8 kBlocks of its columns from n0. Where B's blocks of columns
/// outside [begin, end) are all zeros, warps leave them out.
template <Lies kLies, int kBlocks, int kColumns>
__device__ __forceinline__ void add_products(float (&sum)[kColumns][4], int first, const uint32_t (&left)[4],
                                             const Bf16* tile, int k0, int n0, int lane, int begin = 0,
                                             int end = kBlocks) {
  if constexpr (kWarpgroups) {
    start_multiply<kBlocks, kLies>(&sum[first], left, operand<kLies>(tile, k0, n0));
  } else {
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      if (n < begin || n >= end) continue;
      uint32_t right[4];
      load_right<kLies>(tile, k0, n0 + n * 8, lane, right);
      multiply(sum[first + n], left, right[0], right[1]);
      multiply(sum[first + n + 1], left, right[2], right[3]);
    }
  }
}

/// Starts sum += left right, tiles in shared memory: 64 rows by 8 kBlocks from n0, by a warpgroup.
template <Lies kLeft, Lies kRight, int kBlocks>
__device__ __forceinline__ void start_multiply_tiles(float (&sum)[kBlocks][4], const Bf16* left, const Bf16* right,
                                                     int n0) {
  constexpr Lies kLeftAsRight = kLeft == Lies::kRows ? Lies::kColumns : Lies::kRows;
#pragma unroll
  for (int k0 = 0; k0 < kTile; k0 += 16) {
    start_multiply<kLeft, kRight>(sum, operand<kLeftAsRight>(left, k0, 0), operand<kRight>(right, k0, n0));
  }
}

/// sum += left right^T over a tile's channels, started: 64 rows by 8 kBlocks from n0, this warp's 16 from m0. Above the
/// diagonal sums may be left out.
template <int kBlocks>
__device__ __forceinline__ void add_rows(float (&sum)[kBlocks][4], const Bf16* left, const Bf16* right, int m0, int n0,
                                         int lane) {
  if constexpr (kWarpgroups) {
    start_multiply_tiles<Lies::kRows, Lies::kColumns>(sum, left, right, n0);
  } else {
#pragma unroll
    for (int k0 = 0; k0 < kTile; k0 += 16) {
      uint32_t x[4], y[4];
      load_left<Lies::kRows>(left, m0, k0, lane, x);
#pragma unroll
      for (int n = 0; n < kBlocks; n += 2) {
        if (n0 + n * 8 > m0) continue;
        load_right<Lies::kColumns>(right, k0, n0 + n * 8, lane, y);
        multiply(sum[n], x, y[0], y[1]);
        multiply(sum[n + 1], x, y[2], y[3]);
      }
    }
  }
}

/// sum += left right, started: 64 rows, this warp's 16 from m0, by 32 columns from n0. Steps of 16 along k outside
/// [first, last) may be left out, where all of left is zero.
template <Lies kLeft, Lies kRight>
__device__ __forceinline__ void add_tiles(float (&sum)[4][4], const Bf16* left, const Bf16* right, int m0, int n0,
                                          int lane, int first, int last) {
  if constexpr (kWarpgroups) {
    start_multiply_tiles<kLeft, kRight>(sum, left, right, n0);
  } else {
    multiply_tiles<kLeft, kRight>(left, right, m0 / 8 + n0 / 32, lane, first, last, sum);
  }
}

}  // namespace baton::cuda::attention
