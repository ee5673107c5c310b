// linear_attention_scores.cu for chunks whose decays are mild (linear_attention_decay.cuh): all pairs meet at the
// chunk's start, so scores are one product, of q~ and of keys grown from there.
//
// A block goes over chunks, and in each over tiles of 64 channels; thread i has 8 tokens of channels 2 (i % 32) + {0,
// 1}. The next tile, of this chunk or the next one, is under way while one is made. Shared memory: six tiles, 2.3 KiB
// of tables.
#include "kernels/cuda/linear_attention_pairs.cuh"

namespace baton::cuda::attention {
namespace {

constexpr int kBlocks = 3;  // on a multiprocessor
constexpr int kTableBytes = (sizeof(ChannelSums) + 127) / 128 * 128;
constexpr int kSharedBytes = kTableBytes + 6 * kTileBytes;

/// A block's chunks, one tile after another: those of all heads, then the next in the sequence.
struct Walker {
  Stretch at;
  int tile = 0;

  __device__ __forceinline__ bool last_tile(const Arguments& a) const { return (tile + 1) * kTile == a.K; }
  __device__ __forceinline__ int64_t chunk(const Arguments& a) const {
    return (at.batch * a.H + at.head) * a.N + at.chunk;
  }
  __device__ __forceinline__ void advance(const Arguments& a) {
    if (!last_tile(a)) {
      ++tile;
      return;
    }
    tile = 0;
    if (++at.head < a.H) return;
    at.head = 0;
    if (++at.chunk == a.N) at.chunk = 0, ++at.batch;
    at.first = at.chunk * kChunk;
    at.n = static_cast<int>(min(static_cast<int64_t>(kChunk), a.T - at.first));
  }
};

struct ScoresBlock {
  const Arguments& a;
  const Decayed& to;
  ChannelSums& sums;
  Bf16 *tiles, *grown, *score;
  int warp, lane, channel;
  float scores[3][4] = {};  // pieces of 16 x 8 at levels 0 to 3 (all of a block on the diagonal), 4 and 5

  __device__ __forceinline__ Bf16* x(int stage) const { return tiles + stage * 2 * kTile * kTile; }
  __device__ __forceinline__ Bf16* y(int stage) const { return x(stage) + kTile * kTile; }

  __device__ __forceinline__ void start(const Walker& next, int stage, ChannelDecay& decay) const {
    copy_tile(a, a.q, a.K, next.at, next.tile * kTile, x(stage));
    copy_tile(a, a.k, a.K, next.at, next.tile * kTile, y(stage));
    commit_copies();
    decay.read(a, a.gk, a.K, next.at, next.tile * kTile + channel);
  }

  /// Calls f(query, key, scores) for this warp's pieces.
  template <class F>
  __device__ __forceinline__ void for_scores(F&& f) {
#pragma unroll
    for (int piece = 0; piece < 3; ++piece) {
      const int level = piece == 0 ? 0 : piece + 3;
      if (!LevelScores::has(level, warp)) continue;
      f(LevelScores::query(level, warp), LevelScores::key(level, warp), scores[piece]);
    }
  }

  /// Decays x and y in place and adds to the scores; ends with decayed tiles that all threads can see.
  __device__ __forceinline__ void make_tile(const Walker& now, int stage, ChannelDecay& decay) {
    const OuterDecay outer(sums);
    if (warp == 0) {
      *reinterpret_cast<float2*>(to.decay + now.chunk(a) * a.K + now.tile * kTile + channel) = outer.whole;
    }
    decay.climb_all();
    const float2 inverse = outer.inverse();
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int row = warp * kSub + t;
      const float2 query = a.scale * (decay.through[t] * outer.through) * load_pair(x(stage), row, channel);
      const float2 key = (decay.after[t] * outer.after) * load_pair(y(stage), row, channel);
      put_pair(x(stage), row, channel, query);
      put_pair(y(stage), row, channel, key);
      put_pair(grown, row, channel, inverse * key);
    }
    __syncthreads();
    for_scores([&](int i0, int j0, float(&sum)[4]) { add_piece(x(stage), grown, i0, j0, lane, sum); });
  }

  /// Writes the chunk's scores and begins anew.
  __device__ __forceinline__ void write_scores(const Walker& now) {
    for_scores([&](int i0, int j0, float(&sum)[4]) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = i0 + lane / 4 + half * 8, j = j0 + lane % 4 * 2;
        *reinterpret_cast<uint32_t*>(score + place(i, j)) =
            pack(i < j ? 0.0f : sum[2 * half], i < j + 1 ? 0.0f : sum[2 * half + 1]);
        sum[2 * half] = sum[2 * half + 1] = 0;
      }
    });
    __syncthreads();
    for_pieces<kThreads>([&](int, int row) {
      if (piece_col() / 16 > row / 16) return;
      *reinterpret_cast<uint4*>(to.scores + (now.chunk(a) * kChunk + row) * kChunk + piece_col()) =
          *reinterpret_cast<const uint4*>(score + place(row, piece_col()));
    });
  }
};

__global__ void __launch_bounds__(kThreads, kBlocks) mild_scores_kernel(Arguments a, Decayed to) {
  extern __shared__ __align__(128) unsigned char memory[];
  Bf16* tiles = reinterpret_cast<Bf16*>(memory + kTableBytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ScoresBlock block{a,
                    to,
                    *reinterpret_cast<ChannelSums*>(memory),
                    tiles,
                    tiles + 4 * kTile * kTile,
                    tiles + 5 * kTile * kTile,
                    warp,
                    lane,
                    2 * lane};
  const int64_t items = a.B * a.H * a.N, first = items * blockIdx.x / gridDim.x;
  const auto count = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x - first);
  const int steps = count * static_cast<int>(a.K / kTile);
  Walker now{chunk_at(a, first)}, next = now;
  ChannelDecay decay, following;
  block.start(next, 0, following);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    decay = following;
    block.sums[warp][lane] = decay.total();
    wait_copies<0>();
    __syncthreads();
    next.advance(a);
    if (step + 1 < steps) block.start(next, 1 - stage, following);
    block.make_tile(now, stage, decay);
    write_tile(a, block.x(stage), a.K, now.at, now.tile * kTile, to.q);
    write_tile(a, block.y(stage), a.K, now.at, now.tile * kTile, to.k);
    if (now.last_tile(a)) block.write_scores(now);
    now = next;
  }
}

}  // namespace

cudaError_t launch_mild_scores(const Arguments& a, const Decayed& to, cudaStream_t stream) {
  cudaError_t error =
      cudaFuncSetAttribute(mild_scores_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  unsigned blocks = 0;
  if (error == cudaSuccess) error = persistent_blocks(a.B * a.H * a.N, kBlocks, &blocks);
  if (error != cudaSuccess || blocks == 0) return error;
  mild_scores_kernel<<<blocks, kThreads, kSharedBytes, stream>>>(a, to);
  return cudaGetLastError();
}

}  // namespace baton::cuda::attention
