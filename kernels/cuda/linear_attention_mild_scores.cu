// linear_attention_scores.cu for chunks whose decays are mild.
//
// A block goes over chunks, and in each over tiles of 64 channels. The next tile, of this chunk or the next one, is
// under way while one is made. Shared memory: nine tiles, 2 KiB of tables.
#include "kernels/cuda/linear_attention_mild.cuh"

namespace baton::cuda::attention {
namespace {

constexpr int kBlocks = 3;  // on a multiprocessor
constexpr int kRun = 4;     // 256 threads make a tile
constexpr int kTableBytes = sizeof(ChannelSums);
static_assert(kTableBytes % 1024 == 0);
constexpr int kSharedBytes = kTableBytes + 9 * kTileBytes;

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
  Bf16* tiles;  // two of x and y each, what meets beside x, scores and what their rounding leaves
  int lane;
  MildScores scores;

  __device__ __forceinline__ Bf16* x(int stage) const { return tiles + stage * 2 * kTile * kTile; }
  __device__ __forceinline__ Bf16* y(int stage) const { return x(stage) + kTile * kTile; }
  __device__ __forceinline__ Bf16* score() const { return tiles + 7 * kTile * kTile; }
  __device__ __forceinline__ MildOperands operands(int stage) const {
    Bf16* rest = tiles + 4 * kTile * kTile;
    return {x(stage), rest, rest + kTile * kTile, rest + 2 * kTile * kTile};
  }
  /// Returns a bit for every document start among the thread's tokens.
  __device__ __forceinline__ uint32_t start(const Walker& next, int stage, MildGates<kRun>& gates) const {
    const int64_t stride = a.H * a.K, first = token_offset(a, next.at, a.K) + next.tile * kTile;
    const int64_t piece = first + piece_row() * stride + piece_col();
    copy_rows<kThreads, 1>(threadIdx.x, static_cast<const Bf16*>(a.q) + piece, stride, next.at.n, x(stage));
    copy_rows<kThreads, 1>(threadIdx.x, static_cast<const Bf16*>(a.k) + piece, stride, next.at.n, y(stage));
    commit_copies();
    const int token = run_token<kRun>();
    gates.load(a.gk + first + token * stride + run_channel(), stride, next.at.n - token);
    return starts_of<kRun>(a, next.at.batch * a.T + next.at.first + token, next.at.n - token);
  }

  /// Decays x and y in place and starts to add to the scores; ends with decayed tiles that all threads can see.
  __device__ __forceinline__ void make_tile(const Walker& now, int stage, const MildGates<kRun>& gates,
                                            MildDecay<kRun>& decay) {
    decay.end(sums);
    const float4 whole = mild_whole(sums);
    if (threadIdx.x < 16) {
      *reinterpret_cast<float4*>(to.decay + now.chunk(a) * a.K + now.tile * kTile + run_channel()) = whole;
    }
    const MildOperands meet = operands(stage);
    meet_mildly(a.scale, gates, decay.before, x(stage), y(stage), meet,
                [&](const RunOfTile<kRun>& run, int t, float4 key) { run.at(y(stage), t) = pack(whole * key); });
    publish_tiles();
    __syncthreads();
    scores.add(meet, lane);
  }

  /// Writes the chunk's scores and begins anew.
  __device__ __forceinline__ void write_scores(const Walker& now) {
    scores.write(lane, score(), score() + kTile * kTile);
    publish_tiles();
    __syncthreads();
    const int64_t place = now.chunk(a) * kTile * kTile;
    send_tile(score(), to.scores + place);
    if (to.rest != nullptr) send_tile(score() + kTile * kTile, to.rest + place);
  }
};

__global__ void __launch_bounds__(kThreads, kBlocks) mild_scores_kernel(Arguments a, Decayed to) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Bf16* tiles = reinterpret_cast<Bf16*>(memory + kTableBytes);
  ScoresBlock block{a, to, *reinterpret_cast<ChannelSums*>(memory), tiles, static_cast<int>(threadIdx.x % 32)};
  const int64_t items = a.B * a.H * a.N, first = items * blockIdx.x / gridDim.x;
  const auto count = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x - first);
  const int steps = count * static_cast<int>(a.K / kTile);
  Walker now{chunk_at(a, first)}, next = now;
  MildGates<kRun> gates, following;
  MildDecay<kRun> decay;
  uint32_t starts = block.start(next, 0, following);
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    gates = following;
    gates.forget(starts);
    decay.begin(gates, block.sums);
    wait_copies<0>();
    wait_sent();
    __syncthreads();
    next.advance(a);
    if (step + 1 < steps) starts = block.start(next, 1 - stage, following);
    block.make_tile(now, stage, gates, decay);
    const int64_t tile = now.chunk(a) * (a.K / kTile) + now.tile;
    send_tile(block.x(stage), static_cast<Bf16*>(to.q) + tile * kTile * kTile);
    send_tile(block.y(stage), static_cast<Bf16*>(to.k) + tile * kTile * kTile);
    wait_products();
    if (now.last_tile(a)) block.write_scores(now);
    now = next;
  }
  wait_sent();
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
