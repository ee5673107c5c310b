// A walk of vector gates from q, k and gates themselves: half of a block's warps, the makers, make a chunk's decayed
// tiles and scores in shared memory (as linear_attention_scores.cu makes them), the others walk over the chunk before
// (linear_attention_walk.cuh). Every input is read once, and the walk's output alone is written. For K = 128.
//
// Where a chunk is mild, keys are grown from its start for the state's update too; the state then takes the chunk's
// decay after it (reversed: before), S = G (S + k^T v), and the walk makes the scores from what makers leave, by wgmma.
// Of other chunks makers make them. Four makers' warps make a tile of 64 keys; they hold fewer registers than the
// walk's warps. Phases say when copies are there, when a chunk is made, and when makers may write over what
// scores come from. Shared memory: FusedTraits::kSharedBytes, of which a Hopper has enough; without its instructions no
// registers change hands, so such devices are given the other walks.
#pragma once

#include "kernels/cuda/linear_attention_levels.cuh"
#include "kernels/cuda/linear_attention_mild.cuh"
#include "kernels/cuda/linear_attention_walk.cuh"

namespace baton::cuda::attention {

constexpr int kRun = 8;  // tokens of a maker
static_assert(kRun == kSub);

template <WalkKind kKind, int kOwnTiles, int kTiles>
struct FusedTraits : WalkTraits<kKind, true, kOwnTiles, kTiles> {
  using Walks = WalkTraits<kKind, true, kOwnTiles, kTiles>;
  using Walks::kRead;
  struct MakerTables {
    ChannelSums sums[2][kTiles];  // of even and odd chunks
    float own[kChunk];
    Phases copied[Walks::kStages];  // the walk has left a stage, and its copies are there
    Phases full[Walks::kStages];    // makers have made a chunk
    Phases scored[2];               // scores of even and odd chunks are where the walk needs them
    bool mild[Walks::kStages];
  };
  static_assert(kTiles == 2);
  static constexpr int kMakers = 1024 / kRun * kTiles, kThreadsOfBlock = kMakers + Walks::kNumThreads;
  static_assert(kMakers == kThreads, "levels are made by as many");
  // Tables and stages of the walk, its scores; tables; what scores are made of, beside q~ and keys: four tiles of even
  // and odd chunks each, or of one that is not mild six, and its scores in one of its own four.
  static constexpr int kMakerTableBytes = (sizeof(MakerTables) + 1023) / 1024 * 1024;
  static constexpr int kSharedBytes = Walks::kSharedBytes + kMakerTableBytes + (kRead ? 8 * kTileBytes : 0);
  static_assert(kSharedBytes == fused_walk_shared_bytes(64 * kOwnTiles, 64 * kTiles, kRead));
};

// Named barriers.
constexpr int kOfMakers = 1, kOfWalk = 2;

/// A chunk is mild where every kSub tokens forget no more than this; logarithm, base 2.
constexpr float kGentle = -60.0f / kNumSubs;

template <WalkKind kKind, int kOwnTiles, int kTiles>
struct FusedBlock : WalkBlock<kKind, true, kOwnTiles, kTiles> {
  using Base = WalkBlock<kKind, true, kOwnTiles, kTiles>;
  using Traits = FusedTraits<kKind, kOwnTiles, kTiles>;
  using MakerTables = typename Traits::MakerTables;
  using Base::a, Base::w, Base::lane, Base::own0, Base::span, Base::tables, Base::kSize;
  using Base::own_tile, Base::read_tile, Base::update_tile, Base::scores, Base::carry, Base::grown, Base::kWarps;
  static constexpr int kStages = Traits::kStages, kMakers = Traits::kMakers;
  static constexpr bool kRead = Traits::kRead, kRests = Traits::kRests;

  MakerTables& made;
  Bf16* work;
  int own;  // a maker's tile of keys

  __device__ __forceinline__ FusedBlock(const Arguments& arguments, const Walk& walk, unsigned char* memory)
      : Base(arguments, walk, memory),
        made(*reinterpret_cast<MakerTables*>(memory + Traits::Walks::kSharedBytes)),
        work(reinterpret_cast<Bf16*>(memory + Traits::Walks::kSharedBytes + Traits::kMakerTableBytes)),
        own(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / (1024 / kRun), 0)) {}

  __device__ __forceinline__ void run() {
    const int64_t begin = span * w.chunks_per_span;
    const int count = static_cast<int>(min(w.spans_per_walk * w.chunks_per_span, a.N - begin));
    const int64_t first = this->reversed() ? begin + count - 1 : begin;
    if (threadIdx.x == 0) {
      for (Phases& phases : made.copied) phases.begin(1);
      for (Phases& phases : made.full) phases.begin(kMakers);
      for (Phases& phases : made.scored) phases.begin(32 * kWarps);
      publish_phases();
    }
    __syncthreads();
    if (threadIdx.x < kMakers) {
      hold_registers<false, 96>();
      make(first, count);
    } else {
      hold_registers<true, 160>();
      go(first, count);
    }
  }

  static __device__ __forceinline__ void come(Phases& phases) {
    __syncwarp();  // lest the compiler hold a loop's numbers, which all threads share, in every thread's registers
    phases.come();
  }

  // The walk. -----------------------------------------------------------------------------------------------------

  static __device__ __forceinline__ void walkers_meet() { meet<32 * kWarps>(kOfWalk); }

  __device__ __forceinline__ void go(int64_t first, int count) {
    for (int i = 0; i < kStages - 1; ++i) start(first, i, count);
    this->begin_state();
    for (int i = 0; i < count; ++i) {
      const int stage = i % kStages;
      const Stretch at = this->stretch(first + i * step());
      publish_tiles();
      walkers_meet();
      start(first, i + kStages - 1, count);  // where the chunk before has been
      made.copied[stage].wait(i / kStages % 2);
      made.full[stage].wait(i / kStages % 2);
      grown = made.mild[stage];
      if constexpr (kRead) {
        if (grown) {
          MildScores sums;
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) sums.add(operands(i, tile), lane);
          begin_chunk(at, stage);
          wait_products();
          if constexpr (kRests) {
            walkers_meet();  // so that what scores came from has room for their rests
          } else {
            come(made.scored[i % 2]);
          }
          sums.write(lane, scores(0), kRests ? level_scores(i) : nullptr);
        } else {
          begin_chunk(at, stage);
          copy_scores(level_scores(i));
          if constexpr (!kRests) come(made.scored[i % 2]);
        }
        publish_tiles();
        walkers_meet();
        this->read_chunk(at, stage, level_scores(i), [&] {
          if constexpr (kRests) come(made.scored[i % 2]);
        });
      } else {
        begin_chunk(at, stage);
        uint32_t own[4][4];
        this->load_own(stage, own);
        this->decay_state(stage);
        this->advance(stage, own);
      }
      typename Base::Decay decay;
      this->read_decay(stage, decay);  // while the products run
      wait_products();
      if (grown && !this->reversed()) this->decay_state(stage, decay);
    }
    if (carry()) this->end_carry();
    if (w.last != nullptr) this->end_shard();
  }
  /// Asks for chunk i's tiles, if there is one; its gates come to the second cache, since makers have registers for
  /// one chunk's alone.
  __device__ __forceinline__ void start(int64_t first, int i, int count) {
    if (i >= count || this->thread() != 0) return;
    const Stretch at = this->stretch(first + i * step());
    this->fetch(at, i % kStages, made.copied[i % kStages]);
    for (int tile = 0; tile < kTiles; ++tile) {
      prefetch_box(&this->maps->gates, tile * kTile, this->head, static_cast<int>(at.first), this->batch);
    }
  }
  __device__ __forceinline__ void begin_chunk(const Stretch& at, int stage) {
    if constexpr (kKind != WalkKind::kFusedForward) {
      if (w.chunk_states != nullptr) this->write_chunk_state(at);
    }
    if (!grown || !this->reversed()) return;
    typename Base::Decay decay;
    this->read_decay(stage, decay);
    this->decay_state(stage, decay);
  }
  /// Leaves no rests.
  __device__ __forceinline__ void copy_scores(Bf16* from) {
    for (int i = this->thread(); i < kSize / 8; i += 32 * kWarps) {
      uint4& x = reinterpret_cast<uint4*>(from)[i];
      reinterpret_cast<uint4*>(scores(0))[i] = x;
      if constexpr (kRests) x = make_uint4(0, 0, 0, 0);
    }
  }

  // The makers. ---------------------------------------------------------------------------------------------------

  static __device__ __forceinline__ void makers_meet() { meet<kMakers>(kOfMakers); }

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
  /// All chunks. Gates of the next one are loaded where those of this one are not needed any more.
  __device__ __forceinline__ void make(int64_t first, int count) {
    MildGates<kRun> gates;
    const float* from;  // of this thread's run
    int left;           // tokens of the shard from there on
    const auto load = [&](int i) {
      const Stretch at = this->stretch(first + min(i, count - 1) * step());
      from = a.gk + token_offset(a, at, a.K) + run_token<kRun>() * keys() + own * kTile + run_channel();
      left = static_cast<int>(a.T - at.first) - run_token<kRun>();
      gates.load(from, keys(), left);
    };
    load(0);
    for (int i = 0; i < count; ++i) {
      const int stage = i % kStages;
      MildDecay<kRun> decay;
      gates.forget(starts_of<kRun>(a, (this->batch + 1) * a.T - left, left));
      const float4 sum = decay.begin(gates, made.sums[i % 2][own]);
      const bool gentle = agree<kMakers>(kOfMakers, least(sum) >= kGentle);
      made.copied[stage].wait(i / kStages % 2);
      decay.end(made.sums[i % 2][own]);
      if (write_whole(stage, gentle, decay.before + sum)) {
        if (i + 1 < count) from += step() * kChunk * keys(), left -= step() * kChunk;
        make_mild(i, gates, decay.before, [&](int t) { gates.gate[t] = load_or_zeros(from + t * keys(), t < left); });
      } else {
        make_by_levels(this->stretch(first + i * step()), i);
        load(i + 1);
      }
      publish_tiles();
      come(made.full[stage]);
    }
  }
  /// The decays of the chunk, of whose last run `log` is the logarithm, and whether it is mild; it is where `gentle`.
  __device__ __forceinline__ bool write_whole(int stage, bool gentle, float4 log) {
    bool mild = true;
    if (run_token<kRun>() == kChunk - kRun) {
      const float4 whole = exp2_of(log);
      *reinterpret_cast<float4*>(tables.whole[stage] + own * kTile + run_channel()) = whole;
      mild = is_mild(least(whole));
    }
    mild = gentle || agree<kMakers>(kOfMakers, mild);
    if (threadIdx.x == 0) made.mild[stage] = mild;
    return mild;
  }
  /// Calls done(t) once the gates of token t are not needed.
  template <class F>
  __device__ __forceinline__ void make_mild(int i, const MildGates<kRun>& gates, float4 before, F&& done) {
    if constexpr (kRead) {
      if (i >= 2) wait_scored(i - 2);
      const MildOperands meet = operands(i, own);
      meet_mildly(a.scale, gates, before, meet.query, meet.key, meet,
                  [&](const RunOfTile<kRun>&, int t, float4) { done(t); });
    } else if (this->reversed()) {
      decay_queries_mildly(a.scale, gates, before, update_tile(i % kStages, own), done);
    } else {
      grow_keys(gates, before, update_tile(i % kStages, own), done);
    }
  }
  __device__ __forceinline__ void wait_scored(int i) { made.scored[i % 2].wait(i / 2 % 2); }
  __device__ __forceinline__ MildOperands operands(int i, int tile) {
    Bf16* rest = work + (i % 2 * 4 + tile * 2) * kSize;
    return {queries(i % kStages, tile), rest, keys_tile(i % kStages, tile), rest + kSize};
  }
  /// Where a chunk's scores are left that is not mild, and any chunk's rests of scores: in one of its four tiles; six
  /// others have its levels.
  __device__ __forceinline__ Bf16* level_scores(int i) { return work + (i % 2 == 0 ? 0 : 7) * kSize; }
  __device__ __forceinline__ Bf16* levels(int i) { return work + (i % 2 == 0 ? 2 : 0) * kSize; }
  __device__ __forceinline__ void make_by_levels(const Stretch& at, int i) {
    const auto barrier = [] { makers_meet(); };
    const int stage = i % kStages;
    if (kRead && i >= 1) wait_scored(i - 1);
    LevelChunk chunk;
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      const ChannelSums& sums = made.sums[i % 2][tile];
      ChannelDecay decay;
      decay.read(a, a.gk, a.K, at, tile * kTile + 2 * lane);
      if constexpr (kRead) {
        chunk.add_tile(a.scale, decay, sums, queries(stage, tile), keys_tile(stage, tile), levels(i), barrier);
        barrier();
      } else {
        const OuterDecay outer(sums);
        decay.climb_all();
        if (this->reversed()) {
          decay_queries(a.scale, decay, outer, update_tile(stage, tile));
        } else {
          decay_keys(decay, outer, update_tile(stage, tile));
        }
      }
    }
    if constexpr (kRead) chunk.write(a.scale, made.own, level_scores(i), barrier);
  }
};

}  // namespace baton::cuda::attention
