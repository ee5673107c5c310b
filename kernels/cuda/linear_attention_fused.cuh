// A forward walk of vector gates from q, k and gates themselves: two thirds of a block's warps, the makers, make a
// chunk's decayed tiles and scores in shared memory (as linear_attention_scores.cu makes them), the others walk over
// the chunk before (linear_attention_walk.cuh). Every input is read once, and o alone is written. For K = 128.
//
// Eight makers' warps make each tile of 64 keys; they hold fewer registers than the walk's. Named barriers hand on a
// chunk's tiles (kFull) and their place (kEmpty). Shared memory: FusedTraits::kSharedBytes, of which a Hopper has
// enough; without its instructions no registers change hands, so such devices are given the other walks.
#pragma once

#include "kernels/cuda/linear_attention_levels.cuh"
#include "kernels/cuda/linear_attention_mild.cuh"
#include "kernels/cuda/linear_attention_walk.cuh"

namespace baton::cuda::attention {

template <WalkKind kKind, int kOwnTiles, int kTiles>
struct FusedTraits : WalkTraits<kKind, true, kOwnTiles, kTiles> {
  using Walks = WalkTraits<kKind, true, kOwnTiles, kTiles>;
  using Walks::kRead;
  struct MakerTables {
    ChannelSums sums[kTiles];
    float own[kChunk];
  };
  static_assert(kTiles == 2);
  static constexpr int kMakers = kTiles * kThreads, kThreadsOfBlock = kMakers + Walks::kNumThreads;
  // Tables and stages of the walk; tables; six tiles that scores are made of.
  static constexpr int kMakerTableBytes = (sizeof(MakerTables) + 1023) / 1024 * 1024;
  static constexpr int kSharedBytes = Walks::kSharedBytes + kMakerTableBytes + (kRead ? kLevels * kTileBytes : 0);
  static_assert(kSharedBytes == fused_walk_shared_bytes(64 * kOwnTiles, 64 * kTiles, kRead));
};

// Named barriers. kFull and kEmpty are those of the first of three stages.
constexpr int kOfMakers = 1, kOfLevels = 2, kFull = 3, kEmpty = 6;

/// Waits until kNumThreads have come to the barrier.
template <int kNumThreads>
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "n"(kNumThreads) : "memory");
}
/// Is one of them, and goes on.
template <int kNumThreads>
__device__ __forceinline__ void arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "n"(kNumThreads) : "memory");
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

/// From here on a warpgroup's threads hold so many registers: more, once others hold fewer.
template <bool kMore, int kRegisters>
__device__ __forceinline__ void hold_registers() {
  if constexpr (!kWarpgroups) return;
  if constexpr (kMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
  }
}

template <WalkKind kKind, int kOwnTiles, int kTiles>
struct FusedBlock : WalkBlock<kKind, true, kOwnTiles, kTiles> {
  using Base = WalkBlock<kKind, true, kOwnTiles, kTiles>;
  using Traits = FusedTraits<kKind, kOwnTiles, kTiles>;
  using MakerTables = typename Traits::MakerTables;
  using Base::a, Base::w, Base::lane, Base::own0, Base::span, Base::tables, Base::kSize;
  using Base::own_tile, Base::read_tile, Base::update_tile, Base::scores, Base::carry;
  static constexpr int kStages = Traits::kStages, kAll = Traits::kThreadsOfBlock, kMakers = Traits::kMakers;
  static constexpr bool kRead = Traits::kRead;

  /// A chunk's place in tensors, in numbers.
  struct Place {
    int64_t keys, values, starts;  // of its first token in [B, T, H, K], in [B, T, H, V], and in [B, T]
    int n;                         // tokens of the shard from there on
  };

  MakerTables& made;
  Bf16* work;
  int own, maker;  // a maker's tile of keys, and its warp among the eight of that

  __device__ __forceinline__ FusedBlock(const Arguments& arguments, const Walk& walk, unsigned char* memory)
      : Base(arguments, walk, memory),
        made(*reinterpret_cast<MakerTables*>(memory + Traits::Walks::kSharedBytes)),
        work(reinterpret_cast<Bf16*>(memory + Traits::Walks::kSharedBytes + Traits::kMakerTableBytes)),
        own(threadIdx.x / kThreads),
        maker(threadIdx.x / 32 % 8) {}

  __device__ __forceinline__ void run() {
    const int64_t begin = span * w.chunks_per_span;
    const int count = static_cast<int>(min(w.spans_per_walk * w.chunks_per_span, a.N - begin));
    const int64_t first = this->reversed() ? begin + count - 1 : begin;
    if (threadIdx.x < kMakers) {
      hold_registers<false, 56>();
      make(first, count);
    } else {
      hold_registers<true, 128>();
      go(first, count);
    }
  }

  // The walk. -----------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void go(int64_t first, int count) {
    this->begin_state();
    for (int i = 0; i < count; ++i) {
      const int stage = i % kStages;
      const Stretch at = this->stretch(first + i * step());
      meet<kAll>(kFull + stage);
      if constexpr (kKind != WalkKind::kFusedForward) {
        if (w.chunk_states != nullptr) this->write_chunk_state(at);
      }
      if constexpr (kRead) {
        this->read_chunk(at, stage);
      } else {
        uint32_t own[4][4];
        this->load_own(stage, own);
        this->advance(stage, own);
      }
      wait_products();
      if (i + kStages < count) arrive<kAll>(kEmpty + stage);
    }
    if (carry()) this->end_carry();
    if (w.last != nullptr) this->end_shard();
  }

  // The makers. ---------------------------------------------------------------------------------------------------

  static __device__ __forceinline__ void makers_meet() { meet<kMakers>(kOfMakers); }

  __device__ __forceinline__ Place place_of(const Stretch& at) const {
    return {token_offset(a, at, a.K), token_offset(a, at, w.own_dim) + own0, at.batch * a.T + at.first,
            static_cast<int>(a.T - at.first)};
  }
  __device__ __forceinline__ void next_chunk(Place& at) const {
    const int tokens = kChunk * step();
    at.keys += tokens * keys(), at.values += tokens * values(), at.starts += tokens, at.n -= tokens;
  }
  /// To the chunk after.
  __device__ __forceinline__ int step() const { return this->reversed() ? -1 : 1; }
  /// Queries and keys of a chunk; walks without outputs have those that update the state.
  __device__ __forceinline__ Bf16* queries(int stage, int i) {
    return this->reversed() ? update_tile(stage, i) : read_tile(stage, i);
  }
  __device__ __forceinline__ Bf16* keys_tile(int stage, int i) {
    return this->reversed() ? read_tile(stage, i) : update_tile(stage, i);
  }
  /// From a token to the next.
  __device__ __forceinline__ int keys() const { return static_cast<int>(a.H * a.K); }
  __device__ __forceinline__ int values() const { return static_cast<int>(a.H * w.own_dim); }

  /// Copies of a chunk's tiles; its gates come to the second cache, since there are registers for one chunk's alone.
  __device__ __forceinline__ void start(const Place& at, int stage) {
    const int64_t piece = at.keys + piece_row() * keys() + piece_col();
    const int64_t value = at.values + piece_row() * values() + piece_col();
    copy_rows<kMakers, kOwnTiles>(static_cast<const Bf16*>(w.own) + value, values(), at.n, own_tile(stage, 0));
    const auto *q = static_cast<const Bf16*>(a.q) + piece, *k = static_cast<const Bf16*>(a.k) + piece;
    copy_rows<kMakers, kTiles>(this->reversed() ? q : k, keys(), at.n, update_tile(stage, 0));
    if constexpr (kRead) copy_rows<kMakers, kTiles>(this->reversed() ? k : q, keys(), at.n, read_tile(stage, 0));
    commit_copies();
    if (piece_row() >= at.n) return;
    const float* line = a.gk + at.keys + piece_row() * keys() + piece_col();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) asm volatile("prefetch.global.L2 [%0];\n" ::"l"(line + i * kTile));
  }
  __device__ __forceinline__ void load(const Place& at, MildGates& gates) const {
    gates.load(a.gk + at.keys + maker * kSub * keys() + own * kTile + 2 * lane, keys(), at.n - maker * kSub);
  }
  /// A bit for every document start among the thread's tokens.
  __device__ __forceinline__ uint32_t starts_of(const Place& at) const {
    uint32_t starts = 0;
    for (int t = 0; a.starts != nullptr && t < kSub && maker * kSub + t < at.n; ++t) {
      starts |= uint32_t{a.starts[at.starts + maker * kSub + t] != 0} << t;
    }
    return starts;
  }

  __device__ __forceinline__ void make(int64_t first, int count) {
    MildGates gates;
    Place at = place_of(this->stretch(first));
    start(at, 0);
    load(at, gates);
    for (int i = 0; i < (kRead ? kStages : 0); ++i) clear_scores(i);  // blocks above the diagonal stay so
    for (int i = 0; i < count; ++i) {
      const int stage = i % kStages, following = (i + 1) % kStages;
      gates.forget(starts_of(at));
      made.sums[own][maker][lane] = gates.total();
      wait_copies<0>();
      makers_meet();
      next_chunk(at);
      if (i + 1 < count) {
        if (i + 1 >= kStages) meet<kAll>(kEmpty + following);
        start(at, following);
      } else if (this->reversed()) {
        at.n = 0;  // before the shard there is nothing
      }
      make_chunk(first + i * step(), stage, gates, at);
      publish_tiles();
      arrive<kAll>(kFull + stage);
    }
  }

  __device__ __forceinline__ void clear_scores(int stage) {
    reinterpret_cast<uint4*>(scores(stage))[threadIdx.x] = make_uint4(0, 0, 0, 0);
    static_assert(kMakers * sizeof(uint4) == kTileBytes);
  }

  /// Leaves the gates of the next one, at `next`.
  __device__ __forceinline__ void make_chunk(int64_t chunk, int stage, MildGates& gates, const Place& next) {
    const MildDecay decay(made.sums[own], maker);
    if (maker == 0) *reinterpret_cast<float2*>(tables.whole[stage] + own * kTile + 2 * lane) = decay.whole;
    if (agree<kMakers>(kOfMakers, decay.mild())) {
      make_mild(stage, gates, decay, next);
    } else {
      if (own == 0) make_by_levels(this->stretch(chunk), stage);
      load(next, gates);
      makers_meet();  // before the next chunk's sums
    }
  }
  __device__ __forceinline__ void make_mild(int stage, MildGates& gates, const MildDecay& decay, const Place& next) {
    if constexpr (!kRead) {
      if (this->reversed()) {
        decay_queries_mildly(a.scale, gates, decay, maker, update_tile(stage, own));
      } else {
        decay_keys_mildly(gates, decay, maker, update_tile(stage, own));
      }
      load(next, gates);
    } else {
      decay_mildly(a.scale, gates, decay, maker, operands(stage, own), keys_tile(stage, own));
      load(next, gates);
      makers_meet();
      const int block = threadIdx.x / 32;  // of 16 x 16, at (row, col) of the lower half of 4 x 4
      if (block >= 10) return;
      const int row = block < 1 ? 0 : block < 3 ? 1 : block < 6 ? 2 : 3, col = block - row * (row + 1) / 2;
      MildScores<2> sums;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) sums.add(operands(stage, i), row * 16, col * 16, lane);
      sums.write(row * 16, col * 16, lane, scores(stage));
    }
  }
  __device__ __forceinline__ MildOperands operands(int stage, int i) {
    Bf16* rest = work + 3 * i * kSize;
    return {queries(stage, i), rest, rest + kSize, rest + 2 * kSize};
  }
  /// By the makers of the first tile.
  __device__ __forceinline__ void make_by_levels(const Stretch& at, int stage) {
    const auto barrier = [] { meet<kThreads>(kOfLevels); };
    LevelChunk chunk;
#pragma unroll 1
    for (int i = 0; i < kTiles; ++i) {
      ChannelDecay decay;
      decay.read(a, a.gk, a.K, at, i * kTile + 2 * lane);
      if constexpr (kRead) {
        chunk.add_tile(a.scale, decay, made.sums[i], queries(stage, i), keys_tile(stage, i), work, barrier);
        barrier();
      } else {
        const OuterDecay outer(made.sums[i]);
        decay.climb_all();
        if (this->reversed()) {
          decay_queries(a.scale, decay, outer, update_tile(stage, i));
        } else {
          decay_keys(decay, outer, update_tile(stage, i));
        }
      }
    }
    if constexpr (kRead) chunk.write(a.scale, made.own, scores(stage), barrier);
  }
};

}  // namespace baton::cuda::attention
