// A pass over chunks on tensor cores (bfloat16): outputs, or the gradients of keys' side, or of values' side. All three
// are one computation. The own side is what is made (K or V channels), the other side is what is summed over; x are
// queries (q, or dout), y keys (k, or v), each side with its decays:
//   p_ij = scale sum_o x_io y_jo D_ij      dx_t = scale ((x_t through_t) H) through_t + sum_{j<t} p_tj D_tj y_j
//                                          dy_t = ((y_t after_t) DH) after_t + sum_{i>t} p_it D_it x_i
//                                          both + own_t * (y_t, x_t), own_t = scale sum_o x_to y_to
//   kOutput: own side V, dx = o;  kKeys: own side K, dx = dq, dy = dk;  kValues: own side V, dy = dv (dx = o for dgv)
// H is the state that enters the chunk, DH the gradient of the state that leaves it, [K, V] float32, rounded to
// bfloat16 as operands; so are p and decayed x and y. All sums are float32. Gate gradients as on the CPU
// (kernels/cpu/linear_attention_gradients.cpp), from the float32 sums, without a token's product with itself.
//
// A block has one chunk of one head and one or all tiles of 64 own channels. Products lie in warps as
// linear_attention_tile.cuh says; what is done channel by channel is done by thread i for 8 tokens of channels 2 (i %
// 32) + {0, 1}. No exponent is positive: linear_attention_decay.cuh.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear_attention_channels.cuh"
#include "kernels/cuda/linear_attention_rows.cuh"
#include "kernels/divisor.h"

namespace baton::cuda::attention {

template <Pass kPass, bool kOwn, bool kOther>
using PassFinish = std::conditional_t<kOwn, ChannelFinish<kPass, kOwn, kOther>, RowFinish<kPass, kOwn, kOther>>;

template <Pass kPass, bool kOwn, bool kOther>
struct PassRun : PassFinish<kPass, kOwn, kOther> {
  using Base = PassFinish<kPass, kOwn, kOther>;
  using Base::a, Base::at, Base::own_dim, Base::tables, Base::x, Base::y;
  using Base::kDy, Base::kKeys, Base::kNumber, Base::kSpan, Base::Base;

  __device__ __forceinline__ void run(int first_tile, int last_tile) {
    if constexpr (kNumber) this->number().make(NumberDecay::read(a, at));
    if (this->scalar() && threadIdx.x < kChunk) {
      for (int i = 0; i < 4; ++i) tables.rows[i / 2][i % 2][threadIdx.x] = 0;
    }
    if constexpr (kOther) this->make_scores();
    for (int tile = first_tile; tile < last_tile; ++tile) run_tile(tile * kTile);
    if constexpr (kKeys && kNumber) {
      if (this->scalar()) this->finish_scalar();
    }
  }

  __device__ __forceinline__ void run_tile(int col0) {
    Accumulator dx, dy;
    clear(dx), clear(dy);
    float anchors[4] = {0, 0, 0, 0};
    if constexpr (!Base::kFetch) {
      if constexpr (kOwn) ChannelDecay::prefetch(a, this->own_gates, own_dim, at, col0);
      if constexpr (kDy) this->copy(this->own_x, own_dim, col0, x);
      this->copy(this->own_y, own_dim, col0, y);
    }
    if constexpr (kSpan) {
      this->meet_span_states(col0, dx, dy, anchors);
    } else {
      this->meet_states(col0, dx, dy, anchors);
    }
    this->finish(col0, dx, dy, anchors);
    __syncthreads();  // x, y and the work tiles are free again
  }
};

/// How the grid's blocks are numbered.
struct PassGrid {
  int tiles_per_block, groups;
  Divisor part_chunks;  // chunks of a sequence in a part, of spans
  PassMaps maps;        // with PassSpan::kFetch
};

template <Pass kPass, bool kOwn, bool kOther>
__global__ void __launch_bounds__(kThreads, 2) pass_kernel(Arguments a, const __grid_constant__ PassGrid grid) {
  extern __shared__ __align__(kTileAlignment) unsigned char memory[];
  using Traits = PassTraits<kPass, kOwn, kOther>;
  if constexpr (Traits::kSpan) {
    const uint32_t batch = grid.part_chunks.divide(blockIdx.z), chunk = blockIdx.z - batch * grid.part_chunks.number;
    const uint32_t row = batch * static_cast<uint32_t>(a.H) + blockIdx.y;
    PassRun<kPass, kOwn, kOther> pass(a, part_chunk_at(a, batch, blockIdx.y, chunk), memory);
    pass.place_in_part = row * grid.part_chunks.number + chunk, pass.maps = &grid.maps;
    const int first = static_cast<int>(blockIdx.x) * grid.tiles_per_block;
    pass.run(first, kOwn ? first + 1 : first + grid.tiles_per_block);
  } else {
    const int tiles = ((Traits::kKeys ? a.K : a.V) + kTile - 1) / kTile;
    const int first = static_cast<int>(blockIdx.x % grid.groups) * grid.tiles_per_block;
    PassRun<kPass, kOwn, kOther>(a, chunk_at(a, blockIdx.x / grid.groups), memory)
        .run(first, min(first + grid.tiles_per_block, tiles));
  }
}

template <Pass kPass, bool kOwn, bool kOther>
cudaError_t launch_pass(const Arguments& a, cudaStream_t stream) {
  using Traits = PassTraits<kPass, kOwn, kOther>;
  const auto kernel = pass_kernel<kPass, kOwn, kOther>;
  const int bytes = static_cast<int>(Traits::shared_bytes(a));
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int64_t items = Traits::kSpan ? a.batches * a.H * a.chunks : a.B * a.H * a.N,
                tiles = Traits::num_tiles(Traits::kKeys ? a.K : a.V);
  if (items == 0) return cudaSuccess;
  // Scores of channels are dear and made once for all tiles, unless that leaves the device idle; a scalar's gate
  // gradient is a sum over all tiles; else every tile is a block of its own.
  constexpr int64_t kFew = 264;
  const bool whole = (kOther && items >= kFew) || (Traits::kKeys && a.gate == Gate::kScalar);
  const int groups = whole ? 1 : static_cast<int>(tiles);
  PassGrid grid{whole ? static_cast<int>(tiles) : 1, groups, Divisor(Traits::kSpan ? a.chunks : 1), {}};
  if (Traits::kSpan && kOwn && a.warpgroups) error = make_pass_maps(a, grid.maps);
  if (error != cudaSuccess) return error;
  // A part's chunks are not more than a grid's third dimension may have: AttentionParts.
  const dim3 blocks = Traits::kSpan ? dim3(groups, static_cast<unsigned>(a.H), static_cast<unsigned>(items / a.H))
                                    : dim3(static_cast<unsigned>(items * groups));
  kernel<<<blocks, kThreads, bytes, stream>>>(a, grid);
  return cudaGetLastError();
}

}  // namespace baton::cuda::attention
