// The instructions that C++ has no words for (sm_80 and newer): ldmatrix, mma, cp.async.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace baton::cuda::attention {

using Bf16 = __nv_bfloat16;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// threadIdx.x, read every time, so that no register keeps what follows from it for the next time.
__device__ __forceinline__ int thread_anew() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(x));
  __builtin_assume(0 <= x && x < 1024);
  return x;
}

/// Four 8 x 8 matrices; lane l gives the shared address of row l % 8 of matrix l / 8. Lane l gets elements 2 (l % 4) +
/// {0, 1} of row l / 4, or, transposed, of column l / 4.
__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at));
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t at, uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at));
}
/// The other way (sm_90 and newer).
__device__ __forceinline__ void store_matrices(uint32_t at, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
}
/// The other way, transposed: elements 2 (l % 4) + {0, 1} of row l / 4 go to column l / 4 (sm_90 and newer).
__device__ __forceinline__ void store_matrices_transposed(uint32_t at, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(at), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
/// c += a b, 16 x 8 += 16 x 16 times 16 x 8.
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// An 8 x 8 matrix, of which lane l has elements 2 (l % 4) + {0, 1} of row l / 4, transposed.
__device__ __forceinline__ uint32_t transpose(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
  return y;
}

/// Four lanes (4 n ..) have four words each; lane l gets word l % 4 of each of them, in their order.
__device__ __forceinline__ void transpose_quad(int lane, uint32_t (&x)[4]) {
  asm volatile("" : "+r"(lane));  // lest the compiler make a loop for each kind of lane, by branches
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool odd = lane & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const uint32_t received = __shfl_xor_sync(0xffffffffu, odd ? x[i] : x[i + bit], bit);
      (odd ? x[i] : x[i + bit]) = received;
    }
  }
}

/// One store of 16 bytes. (As an assignment of uint4 it is at times four.)
__device__ __forceinline__ void store_16_bytes(const uint32_t (&x)[4], Bf16* to) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

/// 16 bytes where `inside`, without a branch.
__device__ __forceinline__ void store_16_bytes_if(bool inside, const uint4& x, Bf16* to) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(to),
               "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(static_cast<uint32_t>(inside))
               : "memory");
}

/// Two neighbours of memory that nothing writes meanwhile, asked for here and not where they are needed.
__device__ __forceinline__ uint32_t load_pair_here(const Bf16* from) {
  uint32_t x;
  asm volatile("ld.global.nc.b32 %0, [%1];\n" : "=r"(x) : "l"(from));
  return x;
}
/// Asks for what is to be read.
__device__ __forceinline__ void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from)); }

/// Four numbers, or zeros where not `inside`, without a branch. Of memory that nothing writes meanwhile.
__device__ __forceinline__ float4 load_or_zeros(const float* from, bool inside) {
  float4 x = {0, 0, 0, 0};
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];\n}\n"
               : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
               : "l"(from), "r"(static_cast<uint32_t>(inside)));
  return x;
}

/// Waits until kNumThreads have come to the named barrier.
template <int kNumThreads>
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "n"(kNumThreads) : "memory");
}
/// Waits, too; whether it is so for every one of them.
template <int kNumThreads>
__device__ __forceinline__ bool agree(int barrier, bool mine) {
  uint32_t all;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.and.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}\n"
               : "=r"(all)
               : "r"(static_cast<uint32_t>(mine)), "r"(barrier), "n"(kNumThreads)
               : "memory");
  return all != 0;
}

/// A barrier whose waiting is apart from coming: phase after phase, each over once `count` threads have come.
struct Phases {
  uint64_t barrier;

  __device__ __forceinline__ void begin(int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(shared_address(&barrier)), "r"(count) : "memory");
  }
  __device__ __forceinline__ void come() {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(shared_address(&barrier))
                 : "memory");
  }
  /// Comes once the copies that this thread has started are there.
  __device__ __forceinline__ void come_with_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(shared_address(&barrier)) : "memory");
  }
  /// Comes, and the phase also waits for so many bytes of bulk copies.
  __device__ __forceinline__ void come_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
  }
  /// Comes to the same barrier of a block of the cluster.
  __device__ __forceinline__ void come_at(int block) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(shared_address(&barrier)),
        "r"(block)
        : "memory");
  }
  /// Until the latest even, or odd, phase is over.
  __device__ __forceinline__ void wait(bool odd) {
    asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra WAIT;\n}\n" ::"r"(
                     shared_address(&barrier)),
                 "r"(static_cast<uint32_t>(odd))
                 : "memory");
  }
};

// Clusters (sm_90 and newer): blocks whose shared memory all of them reach.
/// Phases that this thread began are so for all blocks after `meet_cluster`.
__device__ __forceinline__ void publish_phases() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
/// Starts to copy `bytes`, a multiple of 16, to the same place in the first `blocks` blocks of the cluster; phases
/// there that lie where `there` does get to know.
__device__ __forceinline__ void copy_to_cluster(const void* from, int bytes, void* to, Phases& there, int blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;\n" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&there.barrier)), "h"(static_cast<uint16_t>((1 << blocks) - 1))
      : "memory");
}

/// The same of a box of a mapped tensor, the innermost coordinate first, to this block.
__device__ __forceinline__ void copy_box(const void* map, int x, int y, void* to, Phases& there) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n" ::"r"(
          shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(&there.barrier))
      : "memory");
}
__device__ __forceinline__ void copy_box(const void* map, int x, int y, int z, int w, void* to, Phases& there) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];\n" ::"r"(shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(&there.barrier))
      : "memory");
}

/// Asks for a box that is to be read.
__device__ __forceinline__ void prefetch_box(const void* map, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];\n" ::"l"(map), "r"(x), "r"(y),
               "r"(z), "r"(w));
}

/// Starts to copy from shared memory, bulk by bulk (sm_90 and newer); `wait_bulks` of the same thread waits until all
/// of its have been read.
__device__ __forceinline__ void send_bulk(const void* from, int bytes, void* to) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;\n" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void wait_bulks() { asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory"); }

/// Starts to copy 16 bytes to shared memory; where not `inside`, they are zero and nothing is read.
__device__ __forceinline__ void copy_16_bytes(const Bf16* from, bool inside, Bf16* to) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(inside ? 16 : 0));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace baton::cuda::attention
