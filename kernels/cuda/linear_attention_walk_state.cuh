// The state of a walk (linear_attention_walk.cuh): its tiles and tables, where it begins and ends, and its way over a
// chunk.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear_attention_decay.cuh"
#include "kernels/linear_attention_walk.h"

namespace baton::cuda::attention {

enum class WalkKind { kStates, kForward, kReversed };  // kStates: no `out`, either order

/// kOwnTiles: own channels of a block / 64; kTiles: other channels / 64; kChannels: decays have (key) channels.
template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
struct WalkTraits {
  static constexpr bool kRead = kKind != WalkKind::kStates;
  static constexpr int kOwn = kOwnTiles * kTile, kOther = kTiles * kTile;
  static constexpr int kParts = kTiles == 2 ? 2 : 1;  // of 16 own channels a warp: what it loads serves all of them
  static constexpr int kWarps = kOwn / (16 * kParts), kNumThreads = 32 * kWarps;
  static constexpr int kBlocks = kTiles >= 4 ? 1 : kTiles == 1 && kOwnTiles == 1 ? 3 : 2;  // on a multiprocessor
  // Tiles of a chunk, in this order: own, update, read, scores.
  static constexpr int kStageTiles = kOwnTiles + kTiles + (kRead ? kTiles : 0) + (kRead && kChannels ? 1 : 0);
  struct ChannelTables {
    alignas(16) float whole[2][kOther];  // decay of a chunk
  };
  struct NumberTables {
    alignas(16) NumberDecay number;
    float by_distance[kChunk];  // decay between tokens, where the gate is the same for all
  };
  using Tables = std::conditional_t<kChannels, ChannelTables, NumberTables>;
  static constexpr int kTableBytes = (sizeof(Tables) + 127) / 128 * 128;
  static constexpr int kSharedBytes = kTableBytes + (2 * kStageTiles + (kRead && !kChannels ? 1 : 0)) * kTileBytes;
  static_assert(kSharedBytes == walk_shared_bytes(kOwn, kOther, kChannels, kRead));
};

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
struct WalkState : WalkTraits<kKind, kChannels, kOwnTiles, kTiles> {
  using Traits = WalkTraits<kKind, kChannels, kOwnTiles, kTiles>;
  using Traits::kNumThreads, Traits::kOther, Traits::kOwn, Traits::kParts, Traits::kRead, Traits::kStageTiles,
      Traits::kWarps;
  using typename Traits::Tables;
  static constexpr int kSize = kTile * kTile;
  static constexpr int kSpanDecays = kChannels ? (kOther + kNumThreads - 1) / kNumThreads : 1;

  const Arguments& a;
  const Walk& w;
  int warp, lane, own0;  // own0: first own channel of this block
  int64_t batch, head, span;
  Tables& tables;
  Bf16* tiles;
  float state[kParts][kOther / 8][4];  // rows: own channels own_row(part) + {0, 8}; columns: other channels as in mma
  float span_decay[kSpanDecays];       // of all channels; or of channels threadIdx.x + i kNumThreads
  int table_tokens = -1;  // tokens of the chunk whose decays the tables have, where they depend on nothing else

  __device__ __forceinline__ WalkState(const Arguments& arguments, const Walk& walk, unsigned char* memory)
      : a(arguments),
        w(walk),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        tables(*reinterpret_cast<Tables*>(memory)),
        tiles(reinterpret_cast<Bf16*>(memory + Traits::kTableBytes)) {
    const int own_tiles = static_cast<int>(w.own_dim / kOwn);
    const int64_t item = blockIdx.x / own_tiles, row = item / w.num_spans;
    own0 = static_cast<int>(blockIdx.x % own_tiles) * kOwn;
    span = item % w.num_spans, batch = row / a.H, head = row % a.H;
  }

  __device__ __forceinline__ bool reversed() const { return kRead ? kKind == WalkKind::kReversed : w.reversed; }
  __device__ __forceinline__ bool carry() const { return !kRead && w.carry; }
  /// First channel of a part in the block, and this lane's in the tensor.
  __device__ __forceinline__ int own_col(int part) const { return 16 * (warp * kParts + part); }
  __device__ __forceinline__ int own_row(int part) const { return own0 + own_col(part) + lane / 4; }
  __device__ __forceinline__ void load_own(int stage, int part, int step, uint32_t (&left)[4]) {
    const int col = own_col(part);
    load_left<Lies::kColumns>(own_tile(stage, col / kTile), col % kTile, step * 16, lane, left);
  }
  __device__ __forceinline__ Bf16* own_tile(int stage, int i) { return tiles + (stage * kStageTiles + i) * kSize; }
  __device__ __forceinline__ Bf16* update_tile(int stage, int i) { return own_tile(stage, kOwnTiles + i); }
  __device__ __forceinline__ Bf16* read_tile(int stage, int i) { return own_tile(stage, kOwnTiles + kTiles + i); }
  /// P: rows are the later tokens of a pair (queries), columns the earlier ones.
  __device__ __forceinline__ Bf16* scores(int stage) {
    return kChannels ? own_tile(stage, kOwnTiles + 2 * kTiles) : own_tile(2, 0);
  }

  __device__ __forceinline__ Stretch stretch(int64_t chunk) const {
    const int64_t begin = chunk * kChunk;
    return {batch, head, chunk, begin, static_cast<int>(min(static_cast<int64_t>(kChunk), a.T - begin))};
  }

  __device__ __forceinline__ void start_copies(const Stretch& at, int stage) {
#pragma unroll
    for (int i = 0; i < kOwnTiles; ++i) {
      copy_tile<kNumThreads>(a, w.own, w.own_dim, at, own0 + i * kTile, own_tile(stage, i));
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      copy_tile<kNumThreads>(a, w.update, kOther, at, i * kTile, update_tile(stage, i));
      if constexpr (kRead) copy_tile<kNumThreads>(a, w.read, kOther, at, i * kTile, read_tile(stage, i));
    }
    if constexpr (kChannels) {
      const int64_t chunk = (at.batch * a.H + at.head) * a.N + at.chunk;
      if constexpr (kRead) copy_square<kNumThreads>(w.scores + chunk * kSize, kTile, scores(stage));
      if (threadIdx.x < kOther / 4) {
        const float* from = w.chunk_decay + chunk * kOther + threadIdx.x * 4;
        copy_16_bytes(reinterpret_cast<const Bf16*>(from), true,
                      reinterpret_cast<Bf16*>(tables.whole[stage] + threadIdx.x * 4));
      }
    }
    commit_copies();
  }

  __device__ __forceinline__ bool same_gate() const { return a.gate != Gate::kScalar && a.starts == nullptr; }

  /// One number a token: the tables of this chunk, unless they are those of the last.
  __device__ __forceinline__ void make_decays(const Stretch& at) {
    if (same_gate() && table_tokens == at.n) return;
    const int distance = threadIdx.x;
    if (same_gate() && distance < kChunk) {
      const float gate = a.gate == Gate::kFixed ? a.gk[head] : 0.0f;
      tables.by_distance[distance] = distance == 0 ? 1.0f : __expf(gate * static_cast<float>(distance));
    }
    tables.number.make(a, at);
    table_tokens = at.n;
  }

  // The state. --------------------------------------------------------------------------------------------------------

  /// Calls f(x, place): element x of the state and its place in [K, V].
  template <class F>
  __device__ __forceinline__ void for_state(F&& f) {
    const int64_t by_own = w.own_is_keys ? a.V : 1, by_other = w.own_is_keys ? 1 : a.V;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kOther / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          f(state[part][i][j], (own_row(part) + j / 2 * 8) * by_own + (i * 8 + lane % 4 * 2 + j % 2) * by_other);
        }
      }
    }
  }
  __device__ __forceinline__ float* span_state(int64_t index) const {
    return w.states + ((batch * a.H + head) * (w.num_spans + 1) + index) * a.K * a.V;
  }
  __device__ __forceinline__ void begin_state() {
    float* stored = span_state(reversed() ? span + 1 : span);
    const float* from = w.first == nullptr ? stored : w.first + (batch * a.H + head) * a.K * a.V;
    for_state([&](float& x, int64_t place) { x = carry() ? 0.0f : from[place]; });
    if (w.first != nullptr) store_state(stored);
#pragma unroll
    for (float& decay : span_decay) decay = 1;
  }
  /// A span's own part, where the composition expects it, and its decays.
  __device__ __forceinline__ void end_carry() {
    store_state(span_state(reversed() ? span : span + 1));
    if (reversed() || own0 != 0) return;
    float* decay = a.decay_k + ((batch * a.H + head) * w.num_spans + span) * a.K;
    if constexpr (kChannels) {
#pragma unroll
      for (int i = 0; i < kSpanDecays; ++i) {
        const int c = threadIdx.x + i * kNumThreads;
        if (c < kOther) decay[c] = span_decay[i];
      }
    } else {
      for (int c = threadIdx.x; c < a.K; c += kNumThreads) decay[c] = span_decay[0];
    }
  }
  __device__ __forceinline__ void store_state(float* to) {
    for_state([&](float x, int64_t place) { to[place] = x; });
  }
  /// The state that leaves a shard of one span.
  __device__ __forceinline__ void end_shard() {
    store_state(span_state(reversed() ? span : span + 1));
    if (w.last != nullptr) store_state(w.last + (batch * a.H + head) * a.K * a.V);
  }
  /// The state as it enters this chunk, [own, other], rounded. A lane collects eight neighbours.
  __device__ __forceinline__ void write_chunk_state(const Stretch& at) const {
    const int64_t chunk = (batch * a.H + head) * a.N + at.chunk;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const auto& own = state[part];
      Bf16* to = static_cast<Bf16*>(w.chunk_states) + (chunk * w.own_dim + own_row(part)) * kOther + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < kOther / 8; i += 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t x[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) x[j] = pack(own[i + j][2 * half], own[i + j][2 * half + 1]);
          transpose_quad(lane, x);
          *reinterpret_cast<uint4*>(to + half * 8 * kOther + i * 8) = make_uint4(x[0], x[1], x[2], x[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void advance(int stage) {
    if constexpr (kChannels) {
#pragma unroll
      for (int i = 0; i < kOther / 8; ++i) {
        const float2 decay = *reinterpret_cast<const float2*>(tables.whole[stage] + i * 8 + lane % 4 * 2);
#pragma unroll
        for (auto& own : state) {
          own[i][0] *= decay.x, own[i][1] *= decay.y, own[i][2] *= decay.x, own[i][3] *= decay.y;
        }
      }
#pragma unroll
      for (int i = 0; !kRead && i < kSpanDecays; ++i) {
        const int c = threadIdx.x + i * kNumThreads;
        if (c < kOther) span_decay[i] *= tables.whole[stage][c];
      }
    } else {
      const float decay = tables.number.whole();
      for_state([&](float& x, int64_t) { x *= decay; });
      if constexpr (!kRead) span_decay[0] *= decay;
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      uint32_t left[kParts][4], right[4];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        load_own(stage, part, step, left[part]);
        if constexpr (!kChannels) weigh(step, left[part]);
      }
#pragma unroll
      for (int i = 0; i < kOther / 8; i += 2) {
        load_right<Lies::kRows>(update_tile(stage, i / 8), step * 16, i % 8 * 8, lane, right);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          multiply(state[part][i], left[part], right[0], right[1]);
          multiply(state[part][i + 1], left[part], right[2], right[3]);
        }
      }
    }
  }
  /// Own channels of 16 tokens, each by the weight of its token.
  __device__ __forceinline__ void weigh(int step, uint32_t (&left)[4]) {
    const float* weights = reversed() ? tables.number.through : tables.number.after;
    const int token = step * 16 + lane % 4 * 2;
    const float scale = reversed() ? a.scale : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = token + i / 2 * 8;
      const float2 x = unpack(left[i]);
      left[i] = pack(x.x * (scale * weights[t]), x.y * (scale * weights[t + 1]));
    }
  }
};

}  // namespace baton::cuda::attention
