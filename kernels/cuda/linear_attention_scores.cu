// What walks need where decays have key channels (bfloat16): decayed queries and keys and the scores of pairs,
//   q~_t = scale q_t through_t      k~_t = k_t after_t      P_ij = scale sum_k q_ik k_jk D_ijk  (i >= j)      G [K]
// over each chunk. Scores are made level by level (linear_attention_pairs.cuh); no exponent is positive
// (linear_attention_decay.cuh). Rounded to bfloat16: all but G.
//
// Nearly all chunks are mild, so first linear_attention_mild_scores.cu makes all of them as if they were; here are the
// others, whose results were meaningless, made again.
// A block looks for such among its chunks, and goes in each over tiles of 64 channels; thread i has 8 tokens of
// channels 2 (i % 32) + {0, 1}. The next tile is under way while one is made. Shared memory: four tiles, six of
// levels, 2.3 KiB of tables.
#include "kernels/cuda/linear_attention_levels.cuh"
#include "kernels/cuda/linear_attention_products.cuh"

namespace baton::cuda::attention {
namespace {

struct Tables {
  ChannelSums sums;
  float own[kChunk];
};
constexpr int kBlocks = 2;  // on a multiprocessor
constexpr int kTableBytes = (sizeof(Tables) + 127) / 128 * 128;
constexpr int kSharedBytes = kTableBytes + (4 + kLevels) * kTileBytes;

/// Whether all of these decays are mild; for all threads.
__device__ __forceinline__ bool all_mild(const float* decay, int64_t count) {
  bool mild = true;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) mild = mild && is_mild(decay[i]);
  return __syncthreads_and(mild);
}

/// chunk: of B H N.
__device__ __forceinline__ void make_chunk(const Arguments& a, const Decayed& to, int64_t chunk, Tables& tables,
                                           Bf16* tiles) {
  Bf16* levels = tiles + 4 * kTile * kTile;
  const int64_t row = chunk / a.N, first = chunk % a.N * kChunk;
  const Stretch at{row / a.H, row % a.H, chunk % a.N, first, static_cast<int>(min(int64_t{kChunk}, a.T - first))};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, channel = 2 * lane;
  const int num_tiles = static_cast<int>(a.K / kTile);
  const auto start = [&](int tile, ChannelDecay& decay) {
    Bf16* to = tiles + tile % 2 * 2 * kTile * kTile;
    copy_tile(a, a.q, a.K, at, tile * kTile, to);
    copy_tile(a, a.k, a.K, at, tile * kTile, to + kTile * kTile);
    commit_copies();
    decay.read(a, a.gk, a.K, at, tile * kTile + channel);
  };

  const auto barrier = [] { __syncthreads(); };
  LevelChunk made;
  ChannelDecay decay, next;
  start(0, next);
  for (int tile = 0; tile < num_tiles; ++tile) {
    Bf16 *x = tiles + tile % 2 * 2 * kTile * kTile, *y = x + kTile * kTile;
    decay = next;
    tables.sums[warp][lane] = decay.total();
    wait_copies<0>();
    wait_sent();
    barrier();
    if (tile + 1 < num_tiles) start(tile + 1, next);
    made.add_tile(a.scale, decay, tables.sums, x, y, levels, barrier);
    publish_tiles();
    barrier();
    const int64_t place = (chunk * num_tiles + tile) * kTile * kTile;
    send_tile(x, static_cast<Bf16*>(to.q) + place);
    send_tile(y, static_cast<Bf16*>(to.k) + place);
  }
  Bf16* score = levels;
  made.write(a.scale, tables.own, score, barrier);
  publish_tiles();
  barrier();
  send_tile(score, to.scores + chunk * kTile * kTile);
  for (int i = threadIdx.x; to.rest != nullptr && i < kTile * kTile / 8; i += kThreads) {
    reinterpret_cast<uint4*>(to.rest + chunk * kTile * kTile)[i] = make_uint4(0, 0, 0, 0);
  }
  wait_sent();
  barrier();
}

__global__ void __launch_bounds__(kThreads, kBlocks) scores_kernel(Arguments a, Decayed to) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int64_t chunks = a.B * a.H * a.N, begin = chunks * blockIdx.x / gridDim.x;
  const int64_t end = chunks * (blockIdx.x + 1) / gridDim.x;
  if (all_mild(to.decay + begin * a.K, (end - begin) * a.K)) return;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    if (all_mild(to.decay + chunk * a.K, a.K)) continue;
    make_chunk(a, to, chunk, *reinterpret_cast<Tables*>(memory), reinterpret_cast<Bf16*>(memory + kTableBytes));
  }
}

}  // namespace

cudaError_t launch_scores(const Arguments& a, const Decayed& to, cudaStream_t stream) {
  cudaError_t error = launch_mild_scores(a, to, stream);
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  }
  unsigned blocks = 0;
  if (error == cudaSuccess) error = persistent_blocks(a.B * a.H * a.N, kBlocks, &blocks);
  if (error != cudaSuccess || blocks == 0) return error;
  scores_kernel<<<blocks, kThreads, kSharedBytes, stream>>>(a, to);
  return cudaGetLastError();
}

}  // namespace baton::cuda::attention
