// A walk over the chunks of a span on tensor cores (bfloat16), the state in registers: one computation, which makes
// outputs, gradients, carries of spans and the states that enter chunks.
//   S [own, other]: S = G * S + sum_j w_j own_j update_j^T, over a chunk's tokens j
//   out_t [own] = inter_t S read_t + sum_j P_tj own_j,   P_tj = scale D_tj (read_t . update_j)
// | makes | own  | update | read | order    | sum over | inter_t         | w_j             |
// | o     | v    | k      | q    | forward  | j <= t   | scale through_t | after_j         |
// | dq    | k    | v      | dout | forward  | j <= t   | scale through_t | after_j         |
// | dv    | dout | q      | k    | reversed | j >= t   | after_t         | scale through_j |
// | dk    | q    | dout   | v    | reversed | j >= t   | after_t         | scale through_j |
// S is the state forward and the state's gradient reversed. Decays that are one number a token are made here. Those of
// key channels (the other side) are in q~ = scale q through, k~ = k after and P, made by linear_attention_scores.cu;
// then inter = w = 1.
//
// A warp has 16 own channels, or 32 where registers allow, and all other channels. S is kept as accumulators of mma,
// whose layout is that of the left operand of the next product, so it stays in registers. Tiles come by cp.async, one
// chunk ahead; shared memory is WalkTraits::kSharedBytes. Rounded to bfloat16: S as an operand, P, weighted own_j,
// outputs. Sums are float32. No exponent is positive (linear_attention_decay.cuh).
#pragma once

#include "kernels/cuda/linear_attention_walk_state.cuh"

namespace baton::cuda::attention {

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
struct WalkBlock : WalkState<kKind, kChannels, kOwnTiles, kTiles> {
  using Base = WalkState<kKind, kChannels, kOwnTiles, kTiles>;
  using Base::a, Base::w, Base::warp, Base::lane, Base::own0, Base::span, Base::tables, Base::state;
  using Base::carry, Base::load_own, Base::own_col, Base::read_tile, Base::reversed, Base::same_gate, Base::scores,
      Base::update_tile, Base::WalkState;
  using Base::kOther, Base::kParts, Base::kRead, Base::kWarps;

  __device__ __forceinline__ void run() {
    const int64_t first = span * w.chunks_per_span;
    const int count = static_cast<int>(min(w.chunks_per_span, a.N - first));
    const auto chunk = [&](int i) { return this->stretch(first + (reversed() ? count - 1 - i : i)); };
    this->start_copies(chunk(0), 0);
    this->begin_state();
    for (int i = 0; i < count; ++i) {
      const int stage = i % 2;
      const Stretch at = chunk(i);
      wait_copies<0>();
      __syncthreads();
      if (i + 1 < count) this->start_copies(chunk(i + 1), 1 - stage);
      if constexpr (!kChannels) this->make_decays(at);
      if (w.chunk_states != nullptr) this->write_chunk_state(at);
      if constexpr (kRead) {
        if constexpr (!kChannels) make_scores(stage);
        __syncthreads();
#pragma unroll 1
        for (int half = 0; half < 2; ++half) make_out(at, stage, half);
      }
      this->advance(stage);
    }
    if (carry()) this->end_carry();
    if (w.first != nullptr) this->end_shard();
  }

  __device__ __forceinline__ void make_scores(int stage) {
    constexpr int kPieces = 8 / kWarps;
#pragma unroll 1
    for (int i = 0; i < kPieces; ++i) {
      const int piece = warp * kPieces + i;           // of 16 x 32, as of eight warps
      if (piece / 2 < 2 && piece % 2 == 1) continue;  // above the diagonal
      Accumulator sums;
      clear(sums);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const Bf16 *read = read_tile(stage, tile), *update = update_tile(stage, tile);
        multiply_tiles<Lies::kRows, Lies::kColumns>(reversed() ? update : read, reversed() ? read : update, piece, lane,
                                                    0, 4, sums);
      }
      const auto& decay = tables.number;
      if (same_gate()) {
        write_scores(piece, sums, [&](int row, int col) { return tables.by_distance[row - col]; });
      } else if (decay.mild()) {
        write_scores(piece, sums, [&](int row, int col) { return decay.mild_between(row, col); });
      } else {
        write_scores(piece, sums, [&](int row, int col) { return row == col ? 1.0f : decay.between(row, col); });
      }
    }
  }
  template <class Between>
  __device__ __forceinline__ void write_scores(int piece, Accumulator& sums, Between&& between) {
    const auto weighted = [&](int row, int col, float value) {
      return row < col ? 0.0f : a.scale * value * between(row, col);
    };
    for_pairs(piece, lane, sums, [&](int row, int col, float p, float q) {
      *reinterpret_cast<uint32_t*>(scores(0) + place(row, col)) =
          pack(weighted(row, col, p), weighted(row, col + 1, q));
    });
  }

  /// Tokens 32 half .. of the chunk.
  __device__ __forceinline__ void make_out(const Stretch& at, int stage, int half) {
    constexpr Lies kScores = kKind == WalkKind::kReversed ? Lies::kRows : Lies::kColumns;
    Accumulator out[kParts];  // rows: own channels; columns: tokens
    uint32_t left[kParts][4], right[4];
#pragma unroll
    for (auto& part : out) clear(part);
#pragma unroll
    for (int step = 0; step < kOther / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const auto &low = state[part][2 * step], &high = state[part][2 * step + 1];
        left[part][0] = pack(low[0], low[1]), left[part][1] = pack(low[2], low[3]);
        left[part][2] = pack(high[0], high[1]), left[part][3] = pack(high[2], high[3]);
      }
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        load_right<Lies::kColumns>(read_tile(stage, step / 4), step % 4 * 16, half * 32 + n * 8, lane, right);
        multiply_parts(out, n, left, right);
      }
    }
    if constexpr (!kChannels) weigh(half, out);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) load_own(stage, part, step, left[part]);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        const int block = 2 * half + n / 2;
        if (kKind == WalkKind::kReversed ? step < block : step > block) continue;
        load_right<kScores>(scores(stage), step * 16, half * 32 + n * 8, lane, right);
        multiply_parts(out, n, left, right);
      }
    }
    write_out(at, half, out);
  }
  static __device__ __forceinline__ void multiply_parts(Accumulator (&out)[kParts], int n,
                                                        const uint32_t (&left)[kParts][4], const uint32_t (&right)[4]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      multiply(out[part][n], left[part], right[0], right[1]);
      multiply(out[part][n + 1], left[part], right[2], right[3]);
    }
  }
  /// Outputs by the weight of their token.
  __device__ __forceinline__ void weigh(int half, Accumulator (&out)[kParts]) {
    const float* inter = reversed() ? tables.number.after : tables.number.through;
    const float scale = reversed() ? 1.0f : a.scale;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 factor = *reinterpret_cast<const float2*>(inter + half * 32 + n * 8 + lane % 4 * 2);
#pragma unroll
      for (auto& part : out) {
        part[n][0] *= scale * factor.x, part[n][1] *= scale * factor.y;
        part[n][2] *= scale * factor.x, part[n][3] *= scale * factor.y;
      }
    }
  }
  /// Of every four blocks of 8 own channels, for 8 tokens, a lane collects the 16 bytes of one token in one block.
  __device__ __forceinline__ void write_out(const Stretch& at, int half, Accumulator (&out)[kParts]) const {
    constexpr int kAtOnce = 2 / kParts;  // blocks of 8 tokens
    const int block = lane % 4, channel = own0 + own_col(0) + block % (2 * kParts) * 8;
    Bf16* to = static_cast<Bf16*>(w.out) + token_offset(a, at, w.own_dim) + channel;
#pragma unroll
    for (int n = 0; n < 4; n += kAtOnce) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto& y = kParts == 2 ? out[i % kParts][n] : out[0][n + i];
        x[2 * i] = transpose(pack(y[0], y[1])), x[2 * i + 1] = transpose(pack(y[2], y[3]));
      }
      transpose_quad(lane, x);
      const int token = half * 32 + (n + block / (2 * kParts)) * 8 + lane / 4;
      if (token < at.n) *reinterpret_cast<uint4*>(to + token * a.H * w.own_dim) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
};

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
__global__ void __launch_bounds__((WalkTraits<kKind, kChannels, kOwnTiles, kTiles>::kNumThreads),
                                  (WalkTraits<kKind, kChannels, kOwnTiles, kTiles>::kBlocks))
    walk_kernel(Arguments a, Walk w) {
  extern __shared__ __align__(128) unsigned char memory[];
  WalkBlock<kKind, kChannels, kOwnTiles, kTiles>(a, w, memory).run();
}

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
cudaError_t launch_walk_of(const Arguments& a, const Walk& w, cudaStream_t stream) {
  using Traits = WalkTraits<kKind, kChannels, kOwnTiles, kTiles>;
  const auto kernel = walk_kernel<kKind, kChannels, kOwnTiles, kTiles>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  const int64_t blocks = a.B * a.H * w.num_spans * (w.own_dim / Traits::kOwn);
  if (error != cudaSuccess || blocks == 0) return error;
  kernel<<<static_cast<unsigned>(blocks), Traits::kNumThreads, Traits::kSharedBytes, stream>>>(a, w);
  return cudaGetLastError();
}

/// The instances there are: walk_exists.
template <WalkKind kKind, bool kChannels>
cudaError_t launch_walk_by_size(const Arguments& a, const Walk& w, cudaStream_t stream) {
  const int64_t other = w.own_is_keys ? a.V : a.K;
  if (walk_own(static_cast<int>(w.own_dim)) == 64) {
    return other == 64 ? launch_walk_of<kKind, kChannels, 1, 1>(a, w, stream)
                       : launch_walk_of<kKind, kChannels, 1, 2>(a, w, stream);
  }
  if (other == 64) return launch_walk_of<kKind, kChannels, 2, 1>(a, w, stream);
  if (other == 128) return launch_walk_of<kKind, kChannels, 2, 2>(a, w, stream);
  return launch_walk_of<kKind, kChannels, 2, 4>(a, w, stream);
}

}  // namespace baton::cuda::attention
