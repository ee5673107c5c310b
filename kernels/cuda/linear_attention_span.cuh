// How a pass meets the states that walks over spans left: rounded, [V, K] a chunk. Tiles of two steps are under way: on
// Hopper, of vector gates, by maps (linear_attention_maps.h), for which one thread asks; else by cp.async.
#pragma once

#include "kernels/cuda/linear_attention_block.cuh"
#include "kernels/cuda/linear_attention_maps.h"

namespace baton::cuda::attention {

template <Pass kPass, bool kOwn, bool kOther>
struct PassSpan : PassBlock<kPass, kOwn, kOther> {
  using Base = PassBlock<kPass, kOwn, kOther>;
  using Base::a, Base::at, Base::piece, Base::half0, Base::warp, Base::lane, Base::channel, Base::tables;
  using Base::kGates, Base::kNumber, Base::kSpan, Base::above_diagonal, Base::PassBlock;
  using Base::other_dim, Base::other_tiles, Base::other_x, Base::other_y, Base::work, Base::x, Base::y;
  using typename Base::Traits;
  static constexpr bool kFetch = kSpan && kOwn && kWarpgroups;
  static constexpr int kSize = kTile * kTile;

  uint32_t place_in_part = 0;      // of this chunk, with kSpan
  const PassMaps* maps = nullptr;  // with kFetch

  /// As PassBlock::meet_states.
  __device__ __forceinline__ void meet_span_states(int col0, Accumulator& dx, Accumulator& dy, float (&anchors)[4]) {
    const auto K = static_cast<int>(a.K), V = static_cast<int>(a.V);
    const Bf16* h = channel_at(static_cast<const Bf16*>(a.chunk_state), place_in_part, K * V, col0);
    const Bf16* dh = channel_at(static_cast<const Bf16*>(a.chunk_dstate), place_in_part, K * V, col0);
    Accumulator sums;
    clear(sums);
    const auto load = [&](int tile) {
      Bf16* to = work + tile % 2 * 4 * kSize;
      this->copy(other_x, other_dim, tile * kTile, to);
      this->copy(other_y, other_dim, tile * kTile, to + kSize);
      copy_square(h + tile * kTile * K, K, to + 2 * kSize);
      copy_square(dh + tile * kTile * K, K, to + 3 * kSize);
      commit_copies();
    };
    if constexpr (kFetch) {
      begin_fetches(col0);
    } else {
      load(0);
    }
    for (int tile = 0; tile < other_tiles; ++tile) {
      const Bf16 *left_x = work + tile % 2 * 4 * kSize, *left_y = left_x + kSize;
      const Bf16 *h_tile = left_y + kSize, *dh_tile = h_tile + kSize;
      if constexpr (kFetch) {
        tables.fetches.there[tile % 2].wait(tile / 2 % 2);
      } else {
        wait_copies<0>();
        publish_tiles();
        __syncthreads();
        if (tile + 1 < other_tiles) load(tile + 1);
      }
      multiply_span(left_x, left_y, h_tile, dh_tile, sums, dx, dy);
      if constexpr (kGates || kNumber) {
#pragma unroll
        for (int i = 0; i < kSub; ++i) {
          const int row = warp * kSub + i;
          const float2 p = load_pair(h_tile, row, channel) * load_pair(dh_tile, row, channel);
          anchors[i % 2 * 2] += p.x, anchors[i % 2 * 2 + 1] += p.y;
        }
      }
      wait_products();
      if constexpr (kFetch) fetch_next(col0, tile);
    }
    if constexpr (kFetch) tables.fetches.own.wait(false);
    __syncthreads();
    this->write_scores(sums);
  }

  /// Own x, y and gates, and what the first two steps need.
  __device__ __forceinline__ void begin_fetches(int col0) {
    auto& fetches = tables.fetches;
    if (threadIdx.x == 0) {
      fetches.own.begin(1);
      for (int i = 0; i < 2; ++i) fetches.there[i].begin(1), fetches.left[i].begin(kThreads / 32);
      publish_phases();
      fetch(col0, 0);
      fetches.own.come_and_expect(2 * kTileBytes + Traits::kGateBytes);
      fetch_box(maps->q, col0, x, fetches.own);
      fetch_box(maps->k, col0, y, fetches.own);
      fetch_box(maps->gates, col0, this->gates(), fetches.own);
      if (other_tiles > 1) fetch(col0, 1);
    }
    __syncthreads();
  }
  __device__ __forceinline__ void fetch(int col0, int tile) {
    Phases& there = tables.fetches.there[tile % 2];
    Bf16* to = work + tile % 2 * 4 * kSize;
    there.come_and_expect(4 * kTileBytes);
    fetch_box(maps->dout, tile * kTile, to, there);
    fetch_box(maps->v, tile * kTile, to + kSize, there);
    const int row = static_cast<int>(place_in_part) * other_dim + tile * kTile;
    copy_box(&maps->state, col0, row, to + 2 * kSize, there);
    copy_box(&maps->dstate, col0, row, to + 3 * kSize, there);
  }
  __device__ __forceinline__ void fetch_box(const CUtensorMap& map, int col0, void* to, Phases& there) const {
    copy_box(&map, col0, static_cast<int>(at.head), static_cast<int>(at.first), static_cast<int>(at.batch), to, there);
  }
  /// Once all warps have left a step's tiles, the step after the next one gets their place.
  __device__ __forceinline__ void fetch_next(int col0, int tile) {
    if (tile + 2 >= other_tiles) return;
    Phases& left = tables.fetches.left[tile % 2];
    __syncwarp();
    if (lane == 0) left.come();
    if (threadIdx.x == 0) {
      left.wait(tile / 2 % 2);
      fetch(col0, tile + 2);
    }
    __syncwarp();
  }

  /// Gates of this thread's channels of the own side; returns where they forget, as ChannelDecay::read.
  __device__ __forceinline__ uint32_t read_decay(int col0, ChannelDecay& decay) const {
    if constexpr (kFetch) {
      float2 gate[kSub];
#pragma unroll
      for (int t = 0; t < kSub; ++t) {
        gate[t] = reinterpret_cast<const float2*>(this->gates())[(warp * kSub + t) * kPairs + lane];
      }
      return decay.take(a, at, gate);
    } else {
      return decay.read(a, this->own_gates, this->own_dim, at, col0 + channel);
    }
  }

  /// Starts sums += x y^T (below the diagonal), dx += x h, dy += y dh.
  __device__ __forceinline__ void multiply_span(const Bf16* x, const Bf16* y, const Bf16* h, const Bf16* dh,
                                                Accumulator& sums, Accumulator& dx, Accumulator& dy) {
    const int row0 = piece / 2 * 16;
    uint32_t left_x[4][4], left_y[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      load_left<Lies::kRows>(x, row0, step * 16, lane, left_x[step]);
      load_left<Lies::kRows>(y, row0, step * 16, lane, left_y[step]);
    }
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int k0 = step * 16;
      add_products<Lies::kColumns, 4>(sums, 0, left_x[step], y, k0, half0, lane, 0, above_diagonal() ? 0 : 4);
      add_products<Lies::kRows, 4>(dx, 0, left_x[step], h, k0, half0, lane);
      add_products<Lies::kRows, 4>(dy, 0, left_y[step], dh, k0, half0, lane);
    }
    commit_products();
  }
};

}  // namespace baton::cuda::attention
