// The state of a walk (linear_attention_walk.cuh): where it begins and ends, and its way over a chunk.
#pragma once

#include "kernels/cuda/linear_attention_walk_tiles.cuh"

namespace baton::cuda::attention {

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
struct WalkState : WalkTiles<kKind, kChannels, kOwnTiles, kTiles> {
  using Base = WalkTiles<kKind, kChannels, kOwnTiles, kTiles>;
  using Base::a, Base::w, Base::lane, Base::own0, Base::dk_side, Base::batch, Base::head, Base::span, Base::tables;
  using Base::carry, Base::own_col, Base::own_is_keys, Base::own_row, Base::reversed, Base::thread, Base::update_tile;
  using Base::kNumThreads, Base::kOther, Base::kRead, Base::WalkTiles;
  using typename Base::Traits;
  static constexpr int kSpanDecays = kChannels ? (kOther + kNumThreads - 1) / kNumThreads : 1;

  float state[kOther / 8][4];     // rows: own channels own_row() + {0, 8}; columns: other channels as in mma
  float span_decay[kSpanDecays];  // of all channels; or of channels thread() + i kNumThreads
  bool grown = false;     // keys of this chunk are grown from its start: a fused walk decays the state elsewhere
  int table_tokens = -1;  // tokens of the chunk whose decays the tables have, where they depend on nothing else

  __device__ __forceinline__ bool same_gate() const { return a.gate != Gate::kScalar && a.starts == nullptr; }

  /// One number a token: whether this chunk's tables are those of the last.
  __device__ __forceinline__ bool has_decays(const Stretch& at) const {
    return !Traits::kSums && same_gate() && table_tokens == at.n;
  }
  __device__ __forceinline__ void prefetch_gates(const Stretch& next) const {
    const int t = thread_anew();
    if (a.gate == Gate::kScalar && t < next.n) prefetch(a.gk + row_at(a, next, t));
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
