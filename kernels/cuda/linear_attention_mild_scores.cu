// linear_attention_scores.cu for chunks whose decays are mild.
//
// A block goes over chunks, and in each over tiles of 64 channels; thread i has 8 tokens of channels 2 (i % 32) + {0,
// 1}. The next tile, of this chunk or the next one, is under way while one is made. Shared memory: eight tiles, 2 KiB
// of tables.
#include "kernels/cuda/linear_attention_mild.cuh"

namespace baton::cuda::attention {
namespace {

constexpr int kBlocks = 3;  // on a multiprocessor
constexpr int kTableBytes = sizeof(ChannelSums);
static_assert(kTableBytes % 1024 == 0);
constexpr int kSharedBytes = kTableBytes + 8 * kTileBytes;

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
  Bf16* tiles;  // two of x and y each, what meets, scores
  int warp, lane;
  MildScores<1> scores[3];  // of levels 0 to 3 (all of a block on the diagonal), 4 and 5

  __device__ __forceinline__ Bf16* x(int stage) const { return tiles + stage * 2 * kTile * kTile; }
  __device__ __forceinline__ Bf16* y(int stage) const { return x(stage) + kTile * kTile; }
  __device__ __forceinline__ Bf16* score() const { return tiles + 7 * kTile * kTile; }
  __device__ __forceinline__ MildOperands operands(int stage) const {
    Bf16* rest = tiles + 4 * kTile * kTile;
    return {x(stage), rest, rest + kTile * kTile, rest + 2 * kTile * kTile};
  }
  /// Calls f(scores, query, key) for this warp's pieces.
  template <class F>
  __device__ __forceinline__ void for_scores(F&& f) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int level = i == 0 ? 0 : i + 3;
      if (LevelScores::has(level, warp)) f(scores[i], LevelScores::query(level, warp), LevelScores::key(level, warp));
    }
  }

  /// Returns a bit for every document start among the thread's tokens.
  __device__ __forceinline__ uint32_t start(const Walker& next, int stage, MildGates& gates) const {
    const int64_t stride = a.H * a.K, first = token_offset(a, next.at, a.K) + next.tile * kTile;
    const int64_t piece = first + piece_row() * stride + piece_col();
    copy_rows<kThreads, 1>(static_cast<const Bf16*>(a.q) + piece, stride, next.at.n, x(stage));
    copy_rows<kThreads, 1>(static_cast<const Bf16*>(a.k) + piece, stride, next.at.n, y(stage));
    commit_copies();
    gates.load(a.gk + first + warp * kSub * stride + 2 * lane, stride, next.at.n - warp * kSub);
    return ChannelDecay::starts_from(a, next.at, warp * kSub);
  }

  /// Decays x and y in place and adds to the scores; ends with decayed tiles that all threads can see.
  __device__ __forceinline__ void make_tile(const Walker& now, int stage, const MildGates& gates) {
    const MildDecay decay(sums, warp);
    if (warp == 0) {
      *reinterpret_cast<float2*>(to.decay + now.chunk(a) * a.K + now.tile * kTile + 2 * lane) = decay.whole;
    }
    const MildOperands to = operands(stage);
    decay_mildly(a.scale, gates, decay, warp, to, y(stage));
    __syncthreads();
    for_scores([&](MildScores<1>& x, int i0, int j0) { x.add(to, i0, j0, lane); });
  }

  /// Writes the chunk's scores and begins anew.
  __device__ __forceinline__ void write_scores(const Walker& now) {
    for_scores([&](MildScores<1>& x, int i0, int j0) { x.write(i0, j0, lane, score()); });
    __syncthreads();
    for_pieces<kThreads>([&](int, int row) {
      if (piece_col() / 16 > row / 16) return;
      *reinterpret_cast<uint4*>(to.scores + (now.chunk(a) * kChunk + row) * kChunk + piece_col()) =
          *reinterpret_cast<const uint4*>(score() + place(row, piece_col()));
    });
  }
};

__global__ void __launch_bounds__(kThreads, kBlocks) mild_scores_kernel(Arguments a, Decayed to) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Bf16* tiles = reinterpret_cast<Bf16*>(memory + kTableBytes);
  ScoresBlock block{a,
                    to,
                    *reinterpret_cast<ChannelSums*>(memory),
                    tiles,
                    static_cast<int>(threadIdx.x / 32),
                    static_cast<int>(threadIdx.x % 32)};
  const int64_t items = a.B * a.H * a.N, first = items * blockIdx.x / gridDim.x;
  const auto count = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x - first);
  const int steps = count * static_cast<int>(a.K / kTile);
  Walker now{chunk_at(a, first)}, next = now;
  MildGates gates, following;
  uint32_t starts = block.start(next, 0, following);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    gates = following;
    gates.forget(starts);
    block.sums[block.warp][block.lane] = gates.total();
    wait_copies<0>();
    __syncthreads();
    next.advance(a);
    if (step + 1 < steps) starts = block.start(next, 1 - stage, following);
    block.make_tile(now, stage, gates);
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
