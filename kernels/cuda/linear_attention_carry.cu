// Carry of every chunk on tensor cores (bfloat16):
//   S_c [K, V] = sum_t (k_t e_t)^T (v_t ev_t)          dS_c [K, V] = scale sum_t (q_t c_t)^T (dout_t cv_t)
// with c, cv the decay from the chunk's start through t and e, ev from after t to its end: products of exponentials of
// sums of gates (linear_attention_decay.cuh), none with a positive exponent. Decayed operands are rounded to bfloat16,
// sums are float32.
//
// A block has one chunk of one head and 64 key channels, and goes over all value channels: 8 warps, each 16 x 32 of a
// 64 x 64 product. Shared memory: 8 KiB keys, 8 KiB for every 64 value channels, 3 KiB of tables.
#include "kernels/cuda/linear_attention_decay.cuh"

namespace baton::cuda::attention {
namespace {

struct Shared {
  NumberDecay number;
  ChannelSums sums;
};
constexpr int kTableBytes = (sizeof(Shared) + 127) / 128 * 128;

int64_t num_tiles(int64_t dim) { return (dim + kTile - 1) / kTile; }
int64_t shared_bytes(const Arguments& a) { return kTableBytes + (1 + num_tiles(a.V)) * kTileBytes; }

/// Multiplies a tile by its channels' decays over the whole chunk, in place; returns the chunk's decay of the thread's
/// channels. Has a barrier between; the caller makes the tile complete before and puts a barrier after.
template <bool kBackward>
__device__ __forceinline__ float2 decay_tile(const Arguments& a, const float* gates, int64_t dim, const Stretch& at,
                                             int col0, ChannelSums& sums, Bf16* tile) {
  const int sub = threadIdx.x / 32, pair = threadIdx.x % 32;
  ChannelDecay decay;
  decay.read(a, gates, dim, at, col0 + 2 * pair);
  __syncthreads();  // sums were read
  sums[sub][pair] = decay.total();
  __syncthreads();
  const OuterDecay outer(sums);
  decay.climb_all();
#pragma unroll
  for (int t = 0; t < kSub; ++t) {
    const float2 factor = kBackward ? a.scale * (decay.through[t] * outer.through) : decay.after[t] * outer.after;
    const int row = sub * kSub + t;
    put_pair(tile, row, 2 * pair, factor * load_pair(tile, row, 2 * pair));
  }
  return outer.whole;
}

template <bool kBackward, bool kKeyChannels, bool kValueChannels>
__global__ void __launch_bounds__(kThreads, 2) carry_kernel(Arguments a) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Bf16* keys = reinterpret_cast<Bf16*>(memory + kTableBytes);
  Bf16* values = keys + kTile * kTile;
  const int key_tiles = static_cast<int>((a.K + kTile - 1) / kTile), value_tiles = static_cast<int>((a.V + 63) / kTile);
  const Stretch at = chunk_at(a, blockIdx.x / key_tiles);
  const int row0 = static_cast<int>(blockIdx.x % key_tiles) * kTile;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = 2 * lane;

  copy_tile(a, kBackward ? a.q : a.k, a.K, at, row0, keys);
  commit_copies();
  for (int tile = 0; tile < value_tiles; ++tile) {
    copy_tile(a, kBackward ? a.dout : a.v, a.V, at, tile * kTile, values + tile * kTile * kTile);
  }
  commit_copies();

  float2 whole = both(1);
  if constexpr (!kKeyChannels) shared.number.make(NumberDecay::read(a, at));
  wait_copies<1>();
  __syncthreads();
  if constexpr (kKeyChannels) {
    whole = decay_tile<kBackward>(a, a.gk, a.K, at, row0, shared.sums, keys);
  } else {
    whole = both(shared.number.whole());
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int token = warp * kSub + t;
      const float factor = kBackward ? a.scale * shared.number.through[token] : shared.number.after[token];
      put_pair(keys, token, c, factor * load_pair(keys, token, c));
    }
  }
  const int64_t chunk_index = (at.batch * a.H + at.head) * a.N + at.chunk;
  if (!kBackward && warp == 0 && row0 + c < a.K) {
    *reinterpret_cast<float2*>(a.decay_k + chunk_index * a.K + row0 + c) = whole;
  }

  float* state = (kBackward ? a.dstate : a.state) + state_offset(a, at, kBackward ? at.chunk : at.chunk + 1);
  wait_copies<0>();
  __syncthreads();
  for (int tile = 0; tile < value_tiles; ++tile) {
    Bf16* value = values + tile * kTile * kTile;
    const int col0 = tile * kTile;
    if constexpr (kValueChannels) {
      // The scale belongs to the keys alone.
      Arguments unscaled = a;
      unscaled.scale = 1;
      const float2 whole_v = decay_tile<kBackward>(unscaled, a.gv, a.V, at, col0, shared.sums, value);
      if (!kBackward && row0 == 0 && warp == 0 && col0 + c < a.V) {
        *reinterpret_cast<float2*>(a.decay_v + chunk_index * a.V + col0 + c) = whole_v;
      }
      __syncthreads();
    }
    Accumulator sum;
    clear(sum);
    multiply_tiles<Lies::kColumns, Lies::kRows>(keys, value, warp, lane, 0, 4, sum);
    for_pairs(warp, lane, sum, [&](int row, int col, float x, float y) {
      if (row0 + row < a.K && col0 + col < a.V) {
        *reinterpret_cast<float2*>(state + (row0 + row) * a.V + col0 + col) = make_float2(x, y);
      }
    });
  }
}

template <bool kBackward, bool kKeyChannels, bool kValueChannels>
cudaError_t launch(const Arguments& a, cudaStream_t stream) {
  const auto kernel = carry_kernel<kBackward, kKeyChannels, kValueChannels>;
  const int bytes = static_cast<int>(shared_bytes(a));
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int64_t blocks = a.B * a.H * a.N * num_tiles(a.K);
  if (blocks == 0) return cudaSuccess;
  kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(a);
  return cudaGetLastError();
}

template <bool kBackward>
cudaError_t launch_by_gate(const Arguments& a, cudaStream_t stream) {
  if (a.gate == Gate::kBilinear) return launch<kBackward, true, true>(a, stream);
  if (a.gate == Gate::kVector) return launch<kBackward, true, false>(a, stream);
  return launch<kBackward, false, false>(a, stream);
}

}  // namespace

bool carry_fits(const Arguments& a, int64_t bytes) { return shared_bytes(a) <= bytes; }

cudaError_t launch_carry(const Arguments& a, bool backward, cudaStream_t stream) {
  return backward ? launch_by_gate<true>(a, stream) : launch_by_gate<false>(a, stream);
}

}  // namespace baton::cuda::attention
