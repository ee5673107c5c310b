// The tiles of a walk (linear_attention_walk.cuh) in shared memory, and how they come there.
#pragma once

#include "kernels/cuda/linear_attention_maps.h"
#include "kernels/cuda/linear_attention_walk_traits.cuh"

namespace baton::cuda::attention {

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
struct WalkTiles : WalkTraits<kKind, kChannels, kOwnTiles, kTiles> {
  using Traits = WalkTraits<kKind, kChannels, kOwnTiles, kTiles>;
  using Traits::kBack, Traits::kNumThreads, Traits::kOther, Traits::kOwn, Traits::kRead, Traits::kSides,
      Traits::kStageTiles, Traits::kWarps;
  using typename Traits::Tables;
  static constexpr int kSize = kTile * kTile;

  const Arguments& a;
  const Walk& w;
  int warp, lane, own0;   // own0: first own channel of this block; warp: of its side
  bool dk_side;           // of kGradients
  int batch, head, span;  // span: the walk's first
  Tables& tables;
  Bf16* tiles;
  const WalkMaps* maps = nullptr;  // with kFetch, and of fused walks

  __device__ __forceinline__ WalkTiles(const Arguments& arguments, const Walk& walk, unsigned char* memory)
      : a(arguments),
        w(walk),
        warp(block_warp() % kWarps),
        lane(threadIdx.x % 32),
        dk_side(kSides == 2 && block_warp() >= kWarps),
        tables(*reinterpret_cast<Tables*>(memory)),
        tiles(reinterpret_cast<Bf16*>(memory + Traits::kTableBytes)) {
    const int own_tiles = static_cast<int>(w.own_dim / kOwn);
    const int heads = static_cast<int>(a.H), walks = static_cast<int>(w.num_walks);
    const int item = static_cast<int>(blockIdx.x) / own_tiles, row = item / walks;
    own0 = static_cast<int>(blockIdx.x) % own_tiles * kOwn;
    span = static_cast<int>(w.first_span + item % walks * w.spans_per_walk);
    batch = static_cast<int>(a.first_batch) + row / heads, head = row % heads;
  }

  /// The same for all lanes, as the compiler sees it.
  static __device__ __forceinline__ int block_warp() {
    return Traits::kFused ? threadIdx.x / 32 : __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  }
  __device__ __forceinline__ bool reversed() const { return kRead ? kBack : w.reversed; }
  __device__ __forceinline__ int thread() const { return 32 * warp + lane; }  // of its side
  __device__ __forceinline__ bool carry() const { return !kRead && w.carry; }
  __device__ __forceinline__ bool own_is_keys() const { return kSides == 2 ? dk_side : w.own_is_keys; }
  /// First channel of this warp in the block, and this lane's in the tensor.
  __device__ __forceinline__ int own_col() const { return 16 * warp; }
  __device__ __forceinline__ int own_row() const { return own0 + own_col() + lane / 4; }
  __device__ __forceinline__ Bf16* tile(int stage, int i) { return tiles + (stage * kStageTiles + i) * kSize; }
  __device__ __forceinline__ Bf16* own_tile(int stage, int i) { return tile(stage, i + (dk_side ? kTiles : 0)); }
  __device__ __forceinline__ Bf16* update_tile(int stage, int i) { return tile(stage, i + (dk_side ? 0 : kOwnTiles)); }
  __device__ __forceinline__ Bf16* read_tile(int stage, int i) {
    return tile(stage, i + kOwnTiles + kTiles + (dk_side ? kTiles : 0));
  }
  /// P: rows are the later tokens of a pair (queries), columns the earlier ones.
  __device__ __forceinline__ Bf16* scores(int stage) {
    return Traits::kScoresCome ? tile(stage, kOwnTiles + 2 * kTiles) : tile(Traits::kStages, dk_side ? 1 : 0);
  }
  /// Where outputs gather: this warp alone has these channels of it.
  __device__ __forceinline__ Bf16* out_tile(int stage, int i) {
    if constexpr (kSides == 1) return own_tile(stage, i);
    return tile(Traits::kStages, 2 + (dk_side ? kOwnTiles : 0) + i);
  }
  /// The lane, lest the compiler keep in registers, for all chunks, what follows from it; a fused walk has these.
  __device__ __forceinline__ int lane_anew() const { return Traits::kFused ? lane : thread_anew() % 32; }
  /// Own channels as left operand, for 16 tokens a step.
  __device__ __forceinline__ void load_own(int stage, uint32_t (&left)[4][4]) {
    const int lane = this->lane_anew();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      load_left<Lies::kColumns>(own_tile(stage, own_col() / kTile), own_col() % kTile, step * 16, lane, left[step]);
    }
  }

  __device__ __forceinline__ Stretch stretch(int64_t chunk) const {
    const int64_t begin = chunk * kChunk;
    return {batch, head, chunk, begin, static_cast<int>(min(static_cast<int64_t>(kChunk), a.T - begin))};
  }

  __device__ __forceinline__ void begin_copies() {
    if constexpr (Traits::kFetch) {
      if (threadIdx.x == 0) {
        for (Phases& phases : tables.there) phases.begin(1);
        publish_phases();
      }
      __syncthreads();
    }
  }
  /// For the walk's chunk i, which all threads can read after their next barrier.
  __device__ __forceinline__ void wait_chunk(int i) {
    if constexpr (Traits::kFetch) tables.there[i % 2].wait(i / 2 % 2);
    if constexpr (!Traits::kFetch || Traits::kSums) wait_copies<0>();
    publish_tiles();
  }
  __device__ __forceinline__ void start_copies(const Stretch& at, int stage) {
    if constexpr (Traits::kFetch) {
      if (threadIdx.x == 0) fetch(at, stage, tables.there[stage]);
      if constexpr (Traits::kSums) commit_copies();
    } else {
      copy_chunk(at, stage);
    }
  }
  /// By maps; of one thread.
  __device__ __forceinline__ void fetch(const Stretch& at, int stage, Phases& there) {
    there.come_and_expect(kStageTiles * kTileBytes);
    const auto bring = [&](const CUtensorMap& map, int count, int col0, Bf16* to) {
      for (int i = 0; i < count; ++i) {
        copy_box(&map, col0 + i * kTile, head, static_cast<int>(at.first), batch, to + i * kSize, there);
      }
    };
    bring(maps->own, kOwnTiles, own0, tile(stage, 0));
    bring(maps->update, kTiles, 0, tile(stage, kOwnTiles));
    if constexpr (kRead) bring(maps->read, kTiles, 0, tile(stage, kOwnTiles + kTiles));
    if constexpr (kSides == 2) bring(maps->dk_read, kTiles, 0, tile(stage, 3 * kTiles));
  }
  __device__ __forceinline__ void copy_chunk(const Stretch& at, int stage) {
    copy<kOwnTiles>(w.own, static_cast<int>(w.own_dim), own0, at, tile(stage, 0));
    if constexpr (kChannels) {
      const int64_t chunk = chunk_of(at);
      copy_made<kTiles * kTileBytes>(made_tiles(w.update, chunk), update_tile(stage, 0));
      if constexpr (kRead) {
        copy_made<kTiles * kTileBytes>(made_tiles(w.read, chunk), read_tile(stage, 0));
        copy_made<kTileBytes>(w.scores + chunk * kSize, scores(stage));
      }
      copy_made<sizeof(float) * kOther>(w.chunk_decay + chunk * kOther, tables.whole[stage]);
    } else {
      copy<kTiles>(w.update, kOther, 0, at, tile(stage, kOwnTiles));
      if constexpr (kRead) copy<kTiles>(w.read, kOther, 0, at, tile(stage, kOwnTiles + kTiles));
      if constexpr (kSides == 2) copy<kTiles>(w.dk_read, kOther, 0, at, tile(stage, 3 * kTiles));
    }
    commit_copies();
  }

  /// A chunk's channels from col0 on.
  template <int kNumTiles>
  __device__ __forceinline__ void copy(const void* x, int dim, int col0, const Stretch& at, Bf16* to) const {
    const int thread = thread_anew();
    const Bf16* from = channel_at(static_cast<const Bf16*>(x), row_at(a, at, thread / 8), dim, thread % 8 * 8 + col0);
    copy_rows<kNumThreads, kNumTiles>(thread, from, static_cast<int>(a.H) * dim, at.n, to);
  }

  // What linear_attention_scores.cu made, as it lies.
  __device__ __forceinline__ int64_t chunk_of(const Stretch& at) const {
    return (at.batch * a.H + at.head) * a.N + at.chunk;
  }
  static __device__ __forceinline__ const Bf16* made_tiles(const void* x, int64_t chunk) {
    return static_cast<const Bf16*>(x) + chunk * kTiles * kSize;
  }
  template <int kBytes>
  static __device__ __forceinline__ void copy_made(const void* from, void* to) {
    for (int i = thread_anew() * 8; i < kBytes / 2; i += kNumThreads * 8) {
      copy_16_bytes(static_cast<const Bf16*>(from) + i, true, static_cast<Bf16*>(to) + i);
    }
  }
};

}  // namespace baton::cuda::attention
