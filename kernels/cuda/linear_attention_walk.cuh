// A walk over the chunks of a span on tensor cores (bfloat16), the state in registers: one computation, which makes
// outputs, gradients, carries of spans and the states that enter chunks.
//   S [own, other]: S = G * S + sum_j w_j own_j update_j^T, over a chunk's tokens j
//   out_t [own] = inter_t S read_t + sum_j P_tj own_j,   P_tj = scale D_tj (read_t . update_j)
// | makes | own  | update | read | order    | sum over | inter_t         | w_j             |
// | o     | v    | k      | q    | forward  | j <= t   | scale through_t | after_j         |
// | dq    | k    | v      | dout | forward  | j <= t   | scale through_t | after_j         |
// | dv    | dout | q      | k    | reversed | j >= t   | after_t         | scale through_j |
// | dk    | q    | dout   | v    | reversed | j >= t   | after_t         | scale through_j |
// S is the state forward and the state's gradient reversed. Decays that are one number a token are made here. Those of
// key channels (the other side) are in q~ = scale q through, k~ = k after and P, made by linear_attention_scores.cu;
// then inter = w = 1.
//
// A block has 16 own channels a warp and all other channels. S is kept as accumulators of mma, whose layout is that of
// the left operand of the next product, so it stays in registers. Tiles come by cp.async, one chunk ahead; shared
// memory is WalkTraits::kSharedBytes. Rounded to bfloat16: S as an operand, P, weighted own_j, outputs. Sums are
// float32. No exponent is positive (linear_attention_decay.cuh).
#pragma once

#include <type_traits>

#include "kernels/cuda/linear_attention_decay.cuh"
#include "kernels/linear_attention_walk.h"

namespace baton::cuda::attention {

enum class WalkKind { kStates, kForward, kReversed };  // kStates: no `out`, either order

/// kWarps: own channels of a block / 16; kTiles: other channels / 64; kChannels: decays have (key) channels.
template <WalkKind kKind, bool kChannels, int kWarps, int kTiles>
struct WalkTraits {
  static constexpr bool kRead = kKind != WalkKind::kStates;
  static constexpr int kNumThreads = 32 * kWarps;
  static constexpr int kOwn = 16 * kWarps, kOwnTiles = kOwn / kTile, kOther = kTiles * kTile;
  static constexpr int kBlocks = kTiles >= 4 ? 1 : kWarps == 4 && kTiles == 1 ? 3 : 2;  // on a multiprocessor
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

template <WalkKind kKind, bool kChannels, int kWarps, int kTiles>
struct WalkBlock : WalkTraits<kKind, kChannels, kWarps, kTiles> {
  using Traits = WalkTraits<kKind, kChannels, kWarps, kTiles>;
  using Traits::kNumThreads, Traits::kOwn, Traits::kOwnTiles, Traits::kOther, Traits::kRead, Traits::kStageTiles;
  using typename Traits::Tables;
  static constexpr int kSize = kTile * kTile;
  static constexpr int kSpanDecays = kChannels ? (kOther + kNumThreads - 1) / kNumThreads : 1;

  const Arguments& a;
  const Walk& w;
  int warp, lane, own0;  // own0: first own channel of this block
  int64_t batch, head, span;
  Tables& tables;
  Bf16* tiles;
  float state[kOther / 8][4];     // rows: this warp's own channels lane / 4 + {0, 8}; columns: other channels as in mma
  float span_decay[kSpanDecays];  // of all channels; or of channels threadIdx.x + i kNumThreads
  int table_tokens = -1;          // tokens of the chunk whose decays the tables have, where they depend on nothing else

  __device__ __forceinline__ WalkBlock(const Arguments& arguments, const Walk& walk, unsigned char* memory)
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
  __device__ __forceinline__ int own_row() const { return own0 + 16 * warp + lane / 4; }
  __device__ __forceinline__ Bf16* own_tile(int stage, int i) { return tiles + (stage * kStageTiles + i) * kSize; }
  __device__ __forceinline__ Bf16* update_tile(int stage, int i) { return own_tile(stage, kOwnTiles + i); }
  __device__ __forceinline__ Bf16* read_tile(int stage, int i) { return own_tile(stage, kOwnTiles + kTiles + i); }
  /// P: rows are the later tokens of a pair (queries), columns the earlier ones.
  __device__ __forceinline__ Bf16* scores(int stage) {
    return kChannels ? own_tile(stage, kOwnTiles + 2 * kTiles) : own_tile(2, 0);
  }

  __device__ __forceinline__ void run() {
    const int64_t first = span * w.chunks_per_span;
    const int count = static_cast<int>(min(w.chunks_per_span, a.N - first));
    const auto chunk = [&](int i) { return stretch(first + (reversed() ? count - 1 - i : i)); };
    start_copies(chunk(0), 0);
    begin_state();
    for (int i = 0; i < count; ++i) {
      const int stage = i % 2;
      const Stretch at = chunk(i);
      wait_copies<0>();
      __syncthreads();
      if (i + 1 < count) start_copies(chunk(i + 1), 1 - stage);
      if constexpr (!kChannels) make_decays(at);
      if (w.chunk_states != nullptr) write_chunk_state(at);
      if constexpr (kRead) {
        if constexpr (!kChannels) make_scores(stage);
        __syncthreads();
#pragma unroll 1
        for (int half = 0; half < 2; ++half) make_out(at, stage, half);
      }
      advance(stage);
    }
    if (carry()) end_carry();
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

  /// Calls f(i, j, place): element state[i][j] and its place in [K, V].
  template <class F>
  __device__ __forceinline__ void for_state(F&& f) {
    const int64_t by_own = w.own_is_keys ? a.V : 1, by_other = w.own_is_keys ? 1 : a.V;
#pragma unroll
    for (int i = 0; i < kOther / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) f(i, j, (own_row() + j / 2 * 8) * by_own + (i * 8 + lane % 4 * 2 + j % 2) * by_other);
    }
  }
  __device__ __forceinline__ float* span_state(int64_t index) const {
    return w.states + ((batch * a.H + head) * (w.num_spans + 1) + index) * a.K * a.V;
  }
  __device__ __forceinline__ void begin_state() {
    const float* from = span_state(reversed() ? span + 1 : span);
    for_state([&](int i, int j, int64_t place) { state[i][j] = carry() ? 0.0f : from[place]; });
#pragma unroll
    for (float& decay : span_decay) decay = 1;
  }
  /// A span's own part, where the composition expects it, and its decays.
  __device__ __forceinline__ void end_carry() {
    float* to = span_state(reversed() ? span : span + 1);
    for_state([&](int i, int j, int64_t place) { to[place] = state[i][j]; });
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
  /// The state as it enters this chunk, [own, other], rounded. A lane collects eight neighbours.
  __device__ __forceinline__ void write_chunk_state(const Stretch& at) const {
    const int64_t chunk = (batch * a.H + head) * a.N + at.chunk;
    Bf16* to = static_cast<Bf16*>(w.chunk_states) + (chunk * w.own_dim + own_row()) * kOther + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < kOther / 8; i += 4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = pack(state[i + j][2 * half], state[i + j][2 * half + 1]);
        transpose_quad(lane, x);
        *reinterpret_cast<uint4*>(to + half * 8 * kOther + i * 8) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }

  __device__ __forceinline__ void advance(int stage) {
    if constexpr (kChannels) {
#pragma unroll
      for (int i = 0; i < kOther / 8; ++i) {
        const float2 decay = *reinterpret_cast<const float2*>(tables.whole[stage] + i * 8 + lane % 4 * 2);
        state[i][0] *= decay.x, state[i][1] *= decay.y, state[i][2] *= decay.x, state[i][3] *= decay.y;
      }
#pragma unroll
      for (int i = 0; !kRead && i < kSpanDecays; ++i) {
        const int c = threadIdx.x + i * kNumThreads;
        if (c < kOther) span_decay[i] *= tables.whole[stage][c];
      }
    } else {
      const float decay = tables.number.whole();
      for_state([&](int i, int j, int64_t) { state[i][j] *= decay; });
      if constexpr (!kRead) span_decay[0] *= decay;
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      uint32_t left[4], right[4];
      load_left<Lies::kColumns>(own_tile(stage, warp / 4), warp % 4 * 16, step * 16, lane, left);
      if constexpr (!kChannels) {
        const float* weights = reversed() ? tables.number.through : tables.number.after;
        const int token = step * 16 + lane % 4 * 2;
        const float scale = reversed() ? a.scale : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int t = token + i / 2 * 8;
          left[i] = weigh(left[i], scale * weights[t], scale * weights[t + 1]);
        }
      }
#pragma unroll
      for (int i = 0; i < kOther / 8; i += 2) {
        load_right<Lies::kRows>(update_tile(stage, i / 8), step * 16, i % 8 * 8, lane, right);
        multiply(state[i], left, right[0], right[1]);
        multiply(state[i + 1], left, right[2], right[3]);
      }
    }
  }
  static __device__ __forceinline__ uint32_t weigh(uint32_t pair, float low, float high) {
    const float2 x = unpack(pair);
    return pack(x.x * low, x.y * high);
  }

  // Outputs. ----------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void make_scores(int stage) {
    constexpr int kPieces = 8 / kWarps;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int piece = warp * kPieces + i;           // of 16 x 32, as of eight warps
      if (piece / 2 < 2 && piece % 2 == 1) continue;  // above the diagonal
      Accumulator sums;
      clear(sums);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const Bf16 *read = read_tile(stage, tile), *update = update_tile(stage, tile);
        multiply_tiles<Lies::kRows, Lies::kColumns>(reversed() ? update : read, reversed() ? read : update, piece, lane,
                                                    0, 4, sums);
      }
      if (same_gate()) {
        write_scores(piece, sums, [&](int row, int col) { return tables.by_distance[row - col]; });
      } else {
        write_scores(piece, sums,
                     [&](int row, int col) { return row == col ? 1.0f : tables.number.between(row, col); });
      }
    }
  }
  template <class Between>
  __device__ __forceinline__ void write_scores(int piece, Accumulator& sums, Between&& between) {
    const auto weighted = [&](int row, int col, float value) {
      return row < col ? 0.0f : a.scale * value * between(row, col);
    };
    for_pairs(piece, lane, sums, [&](int row, int col, float p, float q) {
      *reinterpret_cast<uint32_t*>(scores(0) + place(row, col)) =
          pack(weighted(row, col, p), weighted(row, col + 1, q));
    });
  }

  /// Tokens 32 half .. of the chunk.
  __device__ __forceinline__ void make_out(const Stretch& at, int stage, int half) {
    constexpr Lies kScores = kKind == WalkKind::kReversed ? Lies::kRows : Lies::kColumns;
    Accumulator out;  // rows: own channels; columns: tokens
    clear(out);
    uint32_t left[4], right[4];
#pragma unroll
    for (int step = 0; step < kOther / 16; ++step) {
      const auto &low = state[2 * step], &high = state[2 * step + 1];
      left[0] = pack(low[0], low[1]), left[1] = pack(low[2], low[3]);
      left[2] = pack(high[0], high[1]), left[3] = pack(high[2], high[3]);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        load_right<Lies::kColumns>(read_tile(stage, step / 4), step % 4 * 16, half * 32 + n * 8, lane, right);
        multiply(out[n], left, right[0], right[1]);
        multiply(out[n + 1], left, right[2], right[3]);
      }
    }
    if constexpr (!kChannels) {
      const float* inter = reversed() ? tables.number.after : tables.number.through;
      const float scale = reversed() ? 1.0f : a.scale;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 factor = *reinterpret_cast<const float2*>(inter + half * 32 + n * 8 + lane % 4 * 2);
        out[n][0] *= scale * factor.x, out[n][1] *= scale * factor.y;
        out[n][2] *= scale * factor.x, out[n][3] *= scale * factor.y;
      }
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      load_left<Lies::kColumns>(own_tile(stage, warp / 4), warp % 4 * 16, step * 16, lane, left);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        const int block = 2 * half + n / 2;
        if (kKind == WalkKind::kReversed ? step < block : step > block) continue;
        load_right<kScores>(scores(stage), step * 16, half * 32 + n * 8, lane, right);
        multiply(out[n], left, right[0], right[1]);
        multiply(out[n + 1], left, right[2], right[3]);
      }
    }
    write_out(at, half, out);
  }
  __device__ __forceinline__ void write_out(const Stretch& at, int half, Accumulator& out) const {
    Bf16* to = static_cast<Bf16*>(w.out) + token_offset(a, at, w.own_dim) + own0 + 16 * warp + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int token = half * 32 + n * 8 + lane / 4;
      const uint32_t low = transpose(pack(out[n][0], out[n][1])), high = transpose(pack(out[n][2], out[n][3]));
      if (token < at.n) {
        *reinterpret_cast<uint32_t*>(to + token * a.H * w.own_dim) = low;
        *reinterpret_cast<uint32_t*>(to + token * a.H * w.own_dim + 8) = high;
      }
    }
  }
};

template <WalkKind kKind, bool kChannels, int kWarps, int kTiles>
__global__ void __launch_bounds__(32 * kWarps, (WalkTraits<kKind, kChannels, kWarps, kTiles>::kBlocks))
    walk_kernel(Arguments a, Walk w) {
  extern __shared__ __align__(128) unsigned char memory[];
  WalkBlock<kKind, kChannels, kWarps, kTiles>(a, w, memory).run();
}

template <WalkKind kKind, bool kChannels, int kWarps, int kTiles>
cudaError_t launch_walk_of(const Arguments& a, const Walk& w, cudaStream_t stream) {
  using Traits = WalkTraits<kKind, kChannels, kWarps, kTiles>;
  const auto kernel = walk_kernel<kKind, kChannels, kWarps, kTiles>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  const int64_t blocks = a.B * a.H * w.num_spans * (w.own_dim / Traits::kOwn);
  if (error != cudaSuccess || blocks == 0) return error;
  kernel<<<static_cast<unsigned>(blocks), Traits::kNumThreads, Traits::kSharedBytes, stream>>>(a, w);
  return cudaGetLastError();
}

/// The instances there are: walk_exists.
template <WalkKind kKind, bool kChannels>
cudaError_t launch_walk_by_size(const Arguments& a, const Walk& w, cudaStream_t stream) {
  const int64_t other = w.own_is_keys ? a.V : a.K;
  if (walk_own(static_cast<int>(w.own_dim)) == 64) {
    return other == 64 ? launch_walk_of<kKind, kChannels, 4, 1>(a, w, stream)
                       : launch_walk_of<kKind, kChannels, 4, 2>(a, w, stream);
  }
  if (other == 64) return launch_walk_of<kKind, kChannels, 8, 1>(a, w, stream);
  if (other == 128) return launch_walk_of<kKind, kChannels, 8, 2>(a, w, stream);
  return launch_walk_of<kKind, kChannels, 8, 4>(a, w, stream);
}

}  // namespace baton::cuda::attention
