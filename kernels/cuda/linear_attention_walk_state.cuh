// The state of a walk (linear_attention_walk.cuh): its tiles and tables, where it begins and ends, and its way over a
// chunk.
#pragma once

#include "kernels/cuda/linear_attention_walk_traits.cuh"

namespace baton::cuda::attention {

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
struct WalkState : WalkTraits<kKind, kChannels, kOwnTiles, kTiles> {
  using Traits = WalkTraits<kKind, kChannels, kOwnTiles, kTiles>;
  using Traits::kBack, Traits::kNumThreads, Traits::kOther, Traits::kOwn, Traits::kRead, Traits::kSides,
      Traits::kStageTiles, Traits::kWarps;
  using typename Traits::Tables;
  static constexpr int kSize = kTile * kTile;
  static constexpr int kSpanDecays = kChannels ? (kOther + kNumThreads - 1) / kNumThreads : 1;

  const Arguments& a;
  const Walk& w;
  int warp, lane, own0;   // own0: first own channel of this block; warp: of its side
  bool dk_side;           // of kGradients
  int batch, head, span;  // span: the walk's first
  Tables& tables;
  Bf16* tiles;
  float state[kOther / 8][4];     // rows: own channels own_row() + {0, 8}; columns: other channels as in mma
  float span_decay[kSpanDecays];  // of all channels; or of channels thread() + i kNumThreads
  bool grown = false;     // keys of this chunk are grown from its start: a fused walk decays the state elsewhere
  int table_tokens = -1;  // tokens of the chunk whose decays the tables have, where they depend on nothing else

  __device__ __forceinline__ WalkState(const Arguments& arguments, const Walk& walk, unsigned char* memory)
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

  __device__ __forceinline__ void start_copies(const Stretch& at, int stage) {
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

  /// A token's row of channels in tensors [B, T, H, dim], where token t of the stretch is; rows of 128 bytes and more
  /// are fewer than 2^32.
  __device__ __forceinline__ uint32_t row_of(const Stretch& at, int t) const {
    return static_cast<uint32_t>(token_offset(a, at, 1)) + static_cast<uint32_t>(t) * static_cast<uint32_t>(a.H);
  }
  template <class T>
  static __device__ __forceinline__ T* channel(T* x, uint32_t row, int dim, int col) {
    return x + col + static_cast<uint64_t>(row) * static_cast<uint32_t>(dim);
  }

  /// A chunk's channels from col0 on.
  template <int kNumTiles>
  __device__ __forceinline__ void copy(const void* x, int dim, int col0, const Stretch& at, Bf16* to) const {
    const int thread = thread_anew();
    const Bf16* from = channel(static_cast<const Bf16*>(x), row_of(at, thread / 8), dim, thread % 8 * 8 + col0);
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

  __device__ __forceinline__ bool same_gate() const { return a.gate != Gate::kScalar && a.starts == nullptr; }

  /// One number a token: whether this chunk's tables are those of the last.
  __device__ __forceinline__ bool has_decays(const Stretch& at) const {
    return !Traits::kSums && same_gate() && table_tokens == at.n;
  }
  __device__ __forceinline__ void prefetch_gates(const Stretch& next) const {
    const int t = thread_anew();
    if (a.gate == Gate::kScalar && t < next.n) prefetch(a.gk + row_of(next, t));
  }
  __device__ __forceinline__ void make_decays(const Stretch& at, float2 gates) {
    const NumberDecay& number = tables.number;
    tables.number.make(gates);
    table_tokens = at.n;
    const int t = thread_anew();
    if (t < kChunk) {
      const float through = a.scale * number.through[t], after = number.after[t];
      tables.inter[t] = reversed() ? after : through;
      const float w = reversed() ? through : after;
      const Bf16 high = __float2bfloat16(w);
      Bf16* to = reinterpret_cast<Bf16*>(tables.own[t / 2]) + t % 2;
      to[0] = high, to[2] = __float2bfloat16(w - __bfloat162float(high));
    }
    if constexpr (!kRead) __syncthreads();  // else scores come before the next barrier, and before their use
  }

  // The state. --------------------------------------------------------------------------------------------------------

  /// Calls f(x, place): element x of the state and its place in [K, V].
  template <class F>
  __device__ __forceinline__ void for_state(F&& f) {
    const int64_t by_own = own_is_keys() ? a.V : 1, by_other = own_is_keys() ? 1 : a.V;
#pragma unroll
    for (int i = 0; i < kOther / 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        f(state[i][j], (own_row() + j / 2 * 8) * by_own + (i * 8 + lane % 4 * 2 + j % 2) * by_other);
      }
    }
  }
  __device__ __forceinline__ float* span_state(int64_t index) const {
    return w.states + ((batch * a.H + head) * (w.num_spans + 1) + index) * a.K * a.V;
  }
  /// Where the walk's states are, in its order.
  __device__ __forceinline__ int64_t state_of_begin() const {
    return reversed() ? min(span + static_cast<int>(w.spans_per_walk), static_cast<int>(w.num_spans)) : span;
  }
  __device__ __forceinline__ int64_t state_of_end() const {
    return reversed() ? span : min(span + static_cast<int>(w.spans_per_walk), static_cast<int>(w.num_spans));
  }
  __device__ __forceinline__ void begin_state() {
    float* stored = span_state(state_of_begin());
    const float* first = w.first == nullptr ? nullptr : w.first + (batch * a.H + head) * a.K * a.V;
    const float* from = carry() ? nullptr : w.whole ? first : stored;
    if (from == nullptr) {
      for_state([](float& x, int64_t) { x = 0; });
    } else {
      for_state([&](float& x, int64_t place) { x = from[place]; });
    }
    if (w.last != nullptr && !dk_side) store_state(stored);
#pragma unroll
    for (float& decay : span_decay) decay = 1;
  }
  /// A span's own part, where the composition expects it, and its decays.
  __device__ __forceinline__ void end_carry() {
    store_state(span_state(state_of_end()));
    if (own0 != 0) return;
    float* decay = a.decay_k + ((batch * a.H + head) * w.num_spans + span) * a.K;
    if constexpr (kChannels) {
#pragma unroll
      for (int i = 0; i < kSpanDecays; ++i) {
        const int c = thread() + i * kNumThreads;
        if (c < kOther) decay[c] = span_decay[i];
      }
    } else {
      for (int c = thread(); c < a.K; c += kNumThreads) decay[c] = span_decay[0];
    }
  }
  __device__ __forceinline__ void store_state(float* to) {
    for_state([&](float x, int64_t place) { to[place] = x; });
  }
  /// The state that leaves the shard.
  __device__ __forceinline__ void end_shard() {
    if (dk_side) return;
    store_state(span_state(state_of_end()));
    store_state(w.last + (batch * a.H + head) * a.K * a.V);
  }
  /// The state as it enters this chunk, [own, other], rounded. A lane collects eight neighbours.
  __device__ __forceinline__ void write_chunk_state(const Stretch& at) const {
    const int lane = this->lane_anew();
    const int64_t chunk = ((batch - a.first_batch) * a.H + head) * a.chunks + at.chunk - a.first_chunk;
    Bf16* to = static_cast<Bf16*>(w.chunk_states) + (chunk * w.own_dim + own_row()) * kOther + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < kOther / 8; i += 4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = pack(state[i + j][2 * half], state[i + j][2 * half + 1]);
        transpose_quad(lane, x);
        store_16_bytes(x, to + half * 8 * kOther + i * 8);
      }
    }
  }

  /// A chunk's decay of this lane's channels.
  using Decay = float2[kOther / 8];
  __device__ __forceinline__ void read_decay(int stage, Decay& decay) const {
#pragma unroll
    for (int i = 0; i < kOther / 8; ++i) {
      decay[i] = *reinterpret_cast<const float2*>(tables.whole[stage] + i * 8 + lane % 4 * 2);
    }
  }
  __device__ __forceinline__ void decay_state(int stage, const Decay& decay) {
#pragma unroll
    for (int i = 0; i < kOther / 8; ++i) {
      state[i][0] *= decay[i].x, state[i][1] *= decay[i].y, state[i][2] *= decay[i].x, state[i][3] *= decay[i].y;
    }
#pragma unroll
    for (int i = 0; !kRead && i < kSpanDecays; ++i) {
      const int c = thread() + i * kNumThreads;
      if (c < kOther) span_decay[i] *= tables.whole[stage][c];
    }
  }
  __device__ __forceinline__ void decay_state(int stage) {
    if constexpr (kChannels) {
      if (grown) return;
      Decay decay;
      read_decay(stage, decay);
      decay_state(stage, decay);
    } else {
      const float decay = tables.number.whole();
#pragma unroll
      for (auto& block : state) {
#pragma unroll
        for (float& x : block) x *= decay;
      }
      if constexpr (!kRead) span_decay[0] *= decay;
    }
  }
  /// What the chunk adds to the decayed state, started.
  __device__ __forceinline__ void advance(int stage, uint32_t (&own)[4][4]) {
    if constexpr (!kChannels) {
#pragma unroll
      for (int step = 0; step < 4; ++step) weigh(step, own[step]);
    }
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        add_products<Lies::kRows, 8>(state, 8 * tile, own[step], update_tile(stage, tile), step * 16, 0, lane);
      }
    }
    commit_products();
  }
  /// Own channels of 16 tokens, each by the weight of its token: x w = x high + x low, rounded once but for what is far
  /// below a rounding.
  __device__ __forceinline__ void weigh(int step, uint32_t (&left)[4]) {
    const int lane = this->lane_anew();
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint2 w = *reinterpret_cast<const uint2*>(tables.own[step * 8 + i * 2 + lane % 4]);
      const auto high = reinterpret_cast<const __nv_bfloat162&>(w.x),
                 low = reinterpret_cast<const __nv_bfloat162&>(w.y);
#pragma unroll
      for (int j = i; j < i + 2; ++j) {
        auto& x = reinterpret_cast<__nv_bfloat162&>(left[j]);
        x = __hfma2(x, high, __hmul2(x, low));
      }
    }
  }
};

}  // namespace baton::cuda::attention
