// The gradient of scalar gates, from what walks leave (linear_attention_walk_sums.cuh).
//   dg_t = X + sum_{s < t} k_s dk_s + sum_{s >= t} (q_s dq_s + pairs_s)        over the tokens s of t's chunk
// with dq, dk the parts from states, pairs_s = sum_{j < s} a_sj - sum_{i > s} a_is, a_ij = P_ij (dout_i v_j), and X = G
// <S, dS> of the state that enters the chunk and the gradient that leaves it. The last sum ends where a document does;
// the others vanish by themselves across a forgotten state.
//
// X from anchors. <S, dS> is X + sum k dk at a chunk's end, and X + sum q dq at its start: so X follows from an anchor
// at either end of a segment of chunks, and each chunk on the way adds the errors of rounded operands to it. Both are
// taken, each by the other's share of these, for which the sums' own sizes stand. A chunk that forgets everything has
// no X, and begins anew.
//
// A block has a segment, a warp a chunk, a lane two neighbouring tokens. Shared memory: 5 numbers a chunk.
#include "kernels/cuda/linear_attention_walk_launch.cuh"
#include "kernels/cuda/vector.cuh"

namespace baton::cuda::attention {
namespace {

constexpr uint32_t kAll = 0xffffffffu;

/// A sum, and the size of what went into it.
struct Estimate {
  float value, size;
  __device__ __forceinline__ void add(float sign, const Estimate& x) { value += sign * x.value, size += x.size; }
};
struct ChunkSums {
  Estimate keys, queries;
  bool forgets;  // all but 2^-20, which is below the errors of what the chunk itself adds
};

/// Of a chunk's tokens, whose errors are independent.
__device__ __forceinline__ Estimate chunk_sum(float2 x) {
  static_assert(kChunk == 8 * 8);
  return {warp_sum(x.x + x.y), warp_sum(fabsf(x.x) + fabsf(x.y)) / 8};
}

/// Sum over the lanes before this one.
__device__ __forceinline__ float exclusive_sum(int lane, float x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(kAll, x, step);
    if (lane >= step) x += other;
  }
  const float sum = __shfl_up_sync(kAll, x, 1);
  return lane == 0 ? 0.0f : sum;
}
/// Sum over the lanes after this one, up to the first in which one `stops`, whose part of it is in its x.
__device__ __forceinline__ float sum_to_stop(int lane, float x, bool stops) {
  const uint32_t from_here = __ballot_sync(kAll, stops) >> lane;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_down_sync(kAll, x, step);
    if (lane + step < 32 && (from_here & ((1u << step) - 1)) == 0) x += other;
  }
  const float sum = __shfl_down_sync(kAll, x, 1);
  return lane == 31 ? 0.0f : sum;
}

__device__ __forceinline__ Estimate anchor(const Arguments& a, const ScalarSums& from, int64_t index) {
  const int parts = static_cast<int>(a.K / 16), lane = threadIdx.x % 32;
  const float sum = warp_sum(lane < parts ? from.anchors[index * parts + lane] : 0.0f);
  return {sum, fabsf(sum)};
}

/// X of a chunk of `count`, from the anchors before the first and after the last.
__device__ __forceinline__ float crossing(const ChunkSums* chunks, int count, int chunk, Estimate left,
                                          Estimate right) {
  for (int i = count - 1;; --i) {
    right.add(-1, chunks[i].keys);
    if (chunks[i].forgets) right = {};
    if (i == chunk) break;
    right.add(1, chunks[i].queries);
  }
  for (int i = 0;; ++i) {
    left.add(-1, chunks[i].queries);
    if (chunks[i].forgets) left = {};
    if (i == chunk) break;
    left.add(1, chunks[i].keys);
  }
  const float sizes = left.size + right.size;
  return sizes > 0 ? (left.size / sizes) * right.value + (right.size / sizes) * left.value : 0.0f;
}

__global__ void __launch_bounds__(32 * kSegment) scalar_gradient_kernel(Arguments a, Walk w) {
  __shared__ ChunkSums chunks[kSegment];
  const ScalarSums& from = w.sums;
  const int chunk = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto walks = static_cast<uint32_t>(w.num_walks);
  const uint32_t walk = blockIdx.x / from.segments, segment = blockIdx.x % from.segments;  // walk: of all rows
  const int chunks_per_walk = static_cast<int>(w.spans_per_walk * w.chunks_per_span), begin = segment * kSegment;
  const int first = walk % walks * chunks_per_walk + begin;
  const int count = min(min(kSegment, chunks_per_walk - begin), static_cast<int>(a.N) - first);
  if (chunk >= count) return;
  const uint32_t row = walk / walks, heads = static_cast<uint32_t>(a.H);
  const int64_t place = (row * a.N + first + chunk) * kChunk + 2 * lane;
  const Stretch at{row / heads, row % heads, first + chunk, (first + chunk) * kChunk + 2 * lane, 0};
  const int64_t token = token_offset(a, at, 1);
  const int n = static_cast<int>(min(a.T - at.first, int64_t{2}));
  const auto read = [&](const float* x) { return *reinterpret_cast<const float2*>(x + place); };
  const float2 keys = read(from.keys), queries = read(from.queries);
  float2 rest = queries + read(from.pairs), gate = {0, 0};  // rest: and, at last, all from a token on
  if (n > 0) gate.x = start_or(a, at, 0, a.gk[token]);
  if (n > 1) gate.y = start_or(a, at, 1, a.gk[token + a.H]);
  const int64_t left = int64_t{walk} * (from.segments + 1) + segment;
  const Estimate anchors[2] = {anchor(a, from, left), anchor(a, from, left + 1)};
  const bool starts[2] = {isinf(gate.x) != 0, isinf(gate.y) != 0};
  const float before = exclusive_sum(lane, keys.x + keys.y);
  const float to_next = starts[1] ? rest.x : rest.x + rest.y;
  rest.y += sum_to_stop(lane, starts[0] ? 0.0f : to_next, starts[0] || starts[1]);
  if (!starts[1]) rest.x += rest.y;
  const ChunkSums sums{chunk_sum(keys), chunk_sum(queries), warp_sum(gate.x + gate.y) < -20 / kLog2E};
  if (lane == 0) chunks[chunk] = sums;
  __syncthreads();
  const float x = crossing(chunks, count, chunk, anchors[0], anchors[1]);
  if (n > 0) a.dgk[token] = starts[0] ? 0.0f : x + before + rest.x;
  if (n > 1) a.dgk[token + a.H] = starts[1] ? 0.0f : x + (before + keys.x) + rest.y;
}

}  // namespace

cudaError_t launch_sum_walk(const Arguments& a, const Walk& w, cudaStream_t stream) {
  constexpr WalkKind kForward = WalkKind::kForwardSums, kBack = WalkKind::kGradientsSums;
  if (w.reversed) {
    return a.K == 64 ? launch_walk_of<kBack, false, 1, 1>(a, w, stream)
                     : launch_walk_of<kBack, false, 2, 2>(a, w, stream);
  }
  return a.K == 64 ? launch_walk_of<kForward, false, 1, 1>(a, w, stream)
                   : launch_walk_of<kForward, false, 2, 2>(a, w, stream);
}

cudaError_t launch_scalar_gradient(const Arguments& a, const Walk& w, cudaStream_t stream) {
  const int64_t blocks = a.B * a.H * w.num_walks * w.sums.segments;
  if (blocks == 0) return cudaSuccess;
  scalar_gradient_kernel<<<static_cast<unsigned>(blocks), 32 * kSegment, 0, stream>>>(a, w);
  return cudaGetLastError();
}

}  // namespace baton::cuda::attention
