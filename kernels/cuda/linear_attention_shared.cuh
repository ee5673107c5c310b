// A walk of vector gates with 256 key channels (linear_attention_walk.cuh) in code for Hopper. Two blocks that differ
// in their own channels alone form a cluster; each brings half of a chunk's decayed tiles to both, by bulk copies,
// since these tiles were made in the order in which they lie in shared memory. Four warps of a block, the carriers,
// bring tiles and send outputs, so that the walk's warps have but products and decays to do. Tiles that read the state
// and those that update it come and are left apart from each other, and nothing else holds a block's two warpgroups
// together: while one is at its products, the other one decays its state.
#pragma once

#include "kernels/cuda/linear_attention_walk.cuh"

namespace baton::cuda::attention {

constexpr int kCarriers = 128;  // threads
template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
constexpr bool shares = (WalkTraits<kKind, kChannels, kOwnTiles, kTiles>::kShared) && kWarpgroups;

template <WalkKind kKind, int kOwnTiles, int kTiles>
struct SharedBlock : WalkBlock<kKind, true, kOwnTiles, kTiles> {
  using Base = WalkBlock<kKind, true, kOwnTiles, kTiles>;
  using Base::a, Base::w, Base::lane, Base::own0, Base::span, Base::tables, Base::state;
  using Base::carry, Base::own_tile, Base::read_tile, Base::reversed, Base::scores, Base::update_tile, Base::WalkBlock;
  using Base::kNumThreads, Base::kOther, Base::kOutBlocks, Base::kRead, Base::kRests, Base::kSize, Base::kStages;
  using Base::kWarps;
  static constexpr int kAhead = kStages == 2 ? 1 : kStages - 2;  // a chunk's place has yet to be left by all
  static constexpr int kMadeBytes = kTiles * kTileBytes, kDecayBytes = sizeof(float) * kOther;

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) begin_phases();
    meet_cluster();
    const int first = span * static_cast<int>(w.chunks_per_span);
    const int count = static_cast<int>(min(w.spans_per_walk * w.chunks_per_span, a.N - first));
    if (threadIdx.x >= kNumThreads) {
      hold_registers<false, 24>();
      bring(first, count);
    } else {
      hold_registers<true, 240>();
      go(first, count);
    }
  }
  __device__ __forceinline__ void begin_phases() {
    for (Phases& phases : tables.own) phases.begin(kCarriers);
    for (Phases& phases : tables.gathered) phases.begin(kWarps);
    for (auto* shared : {&tables.update, &tables.read}) {
      for (Phases& phases : shared->there) phases.begin(1);
      for (Phases& phases : shared->left) phases.begin(kWarps * w.cluster);
    }
    publish_phases();
  }
  __device__ __forceinline__ Stretch chunk(int first, int count, int i) const {
    return this->stretch(first + (reversed() ? count - 1 - i : i));
  }
  /// Whether a place's phase is an odd one as the walk's chunk i is in it.
  static __device__ __forceinline__ bool phase(int i) { return i / kStages % 2; }

  // The walk. ---------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void go(int first, int count) {
    this->begin_state();
    for (int i = 0; i < count; ++i) {
      const int stage = i % kStages;
      if (w.chunk_states != nullptr) this->write_chunk_state(chunk(first, count, i));
      uint32_t own[4][4];
      if constexpr (kRead) {
        float out[kOutBlocks][4] = {};
        tables.read.there[stage].wait(phase(i));
        this->add_inter(stage, 0, out);
        wait_tiles(i);
        this->load_own(stage, own);
        this->add_intra(scores(stage), 0, own, out);
        if constexpr (kRests) this->add_intra(scores(stage) + kSize, 0, own, out);
        wait_products(1);
        leave(tables.read.left[stage]);
        this->decay_state(stage);
        this->advance(stage, own);
        wait_products(1);
        this->gather_out(stage, 0, out);
        __syncwarp();
        if (lane == 0) tables.gathered[stage].come();
      } else {
        wait_tiles(i);
        this->load_own(stage, own);
        this->decay_state(stage);
        this->advance(stage, own);
      }
      wait_products();
      leave(tables.update.left[stage]);
    }
    if (carry()) this->end_carry();
    if (w.last != nullptr) this->end_shard();
    meet_cluster();  // lest a block end while another one may write into it
  }
  __device__ __forceinline__ void wait_tiles(int i) {
    tables.own[i % kStages].wait(phase(i));
    tables.update.there[i % kStages].wait(phase(i));
  }
  /// This warp needs these tiles no more: its products are over, and what it loaded is used.
  __device__ __forceinline__ void leave(Phases& left) const {
    __syncwarp();
    if (lane < w.cluster) left.come_at(lane);
  }

  // The carriers. -----------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void bring(int first, int count) {
    for (int i = 0; i < min(kAhead, count); ++i) bring_chunk(chunk(first, count, i), i);
    for (int i = 0; i < count; ++i) {
      if (i + kAhead < count) bring_chunk(chunk(first, count, i + kAhead), i + kAhead);
      if constexpr (kRead) send_chunk(chunk(first, count, i), i);
    }
    meet_cluster();
  }
  __device__ __forceinline__ void bring_chunk(const Stretch& at, int i) {
    const int stage = i % kStages;
    const int64_t made = this->chunk_of(at);
    const bool leader = threadIdx.x == kNumThreads;
    if constexpr (kRead) {
      auto& shared = tables.read;
      if (i >= kStages) shared.left[stage].wait(!phase(i));
      if (leader) {
        shared.there[stage].come_and_expect(kMadeBytes);
        share<kMadeBytes>(this->made_tiles(w.read, made), read_tile(stage, 0), shared.there[stage]);
      }
    }
    auto& shared = tables.update;
    if (i >= kStages) shared.left[stage].wait(!phase(i));
    if (leader) {
      Phases& there = shared.there[stage];
      there.come_and_expect(kMadeBytes + kDecayBytes + (kRead ? (kRests ? 2 : 1) * kTileBytes : 0));
      share<kMadeBytes>(this->made_tiles(w.update, made), update_tile(stage, 0), there);
      share<kDecayBytes>(w.chunk_decay + made * kOther, tables.whole[stage], there);
      if constexpr (kRead) share<kTileBytes>(w.scores + made * kSize, scores(stage), there);
      if constexpr (kRests) share<kTileBytes>(w.rest + made * kSize, scores(stage) + kSize, there);
    }
    const int thread = this->thread();
    copy_rows<kCarriers, kOwnTiles>(thread, own_piece(static_cast<const Bf16*>(w.own), at), own_stride(), at.n,
                                    own_tile(stage, 0));
    tables.own[stage].come_with_copies();
  }
  /// This block's part of so many bytes, to all blocks of the cluster.
  template <int kBytes>
  __device__ __forceinline__ void share(const void* from, void* to, Phases& there) const {
    const int part = kBytes / w.cluster, begin = part * cluster_rank();
    copy_to_cluster(static_cast<const char*>(from) + begin, part, static_cast<char*>(to) + begin, there, w.cluster);
  }
  /// This thread's first piece of 16 bytes of a chunk's own channels, and from a token to the next.
  template <class T>
  __device__ __forceinline__ T* own_piece(T* x, const Stretch& at) const {
    const int thread = this->thread();
    return channel_at(x, row_at(a, at, thread / 8), static_cast<int>(w.own_dim), own0 + thread % 8 * 8);
  }
  __device__ __forceinline__ int own_stride() const { return static_cast<int>(a.H * w.own_dim); }
  /// A thread sends what lies where it will copy what is own of a later chunk.
  __device__ __forceinline__ void send_chunk(const Stretch& at, int i) {
    const int stage = i % kStages, thread = this->thread();
    Bf16* to = own_piece(static_cast<Bf16*>(w.out), at);
    const Bf16* from = own_tile(stage, 0) + place(thread / 8, thread % 8 * 8);
    tables.gathered[stage].wait(phase(i));
    constexpr int kRows = kCarriers / 8;
    for (int tile = 0; tile < kOwnTiles; ++tile, from += kSize, to += kTile) {
#pragma unroll
      for (int j = 0; j < kTile / kRows; j += 2) {  // two at a time, as registers allow
        const uint4 x[2] = {reinterpret_cast<const uint4&>(from[j * kPieceStep<kCarriers>]),
                            reinterpret_cast<const uint4&>(from[(j + 1) * kPieceStep<kCarriers>])};
#pragma unroll
        for (int i = j; i < j + 2; ++i) {
          store_16_bytes_if(thread / 8 + i * kRows < at.n, x[i - j], to + i * kRows * own_stride());
        }
      }
    }
  }
};

}  // namespace baton::cuda::attention
