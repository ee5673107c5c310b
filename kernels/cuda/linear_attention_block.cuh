// One chunk of a pass: what it has, scores of pairs, and what meets the states. The equations are in
// linear_attention_pass.cuh, which brings the parts together.
#pragma once

#include "kernels/cuda/linear_attention_pass_traits.cuh"

namespace baton::cuda::attention {

template <Pass kPass, bool kOwn, bool kOther>
struct PassBlock : PassTraits<kPass, kOwn, kOther> {
  using Traits = PassTraits<kPass, kOwn, kOther>;
  using Traits::kDx, Traits::kDy, Traits::kGates, Traits::kKeys, Traits::kNumber, Traits::kSpan, Traits::kSumWidth;
  using typename Traits::Tables;

  const Arguments& a;
  Stretch at;
  int piece;                // of products, as warps have them in linear_attention_tile.cuh: here four warps have
  int half0;                // a column half, from here on
  int warp, lane, channel;  // of channels one by one: tokens kSub warp .., channels `channel` and the next of a tile
  int own_dim, other_dim;
  int other_tiles;
  const void *own_x, *own_y, *other_x, *other_y;
  const float *own_gates, *other_gates;
  Tables& tables;
  Bf16 *score, *x, *y, *work, *resident;
  float anchor_total = 0;  // scalar gates

  __device__ __forceinline__ PassBlock(const Arguments& arguments, const Stretch& stretch, unsigned char* memory)
      : a(arguments),
        at(stretch),
        piece(threadIdx.x / 32 % 4 * 2 + threadIdx.x / 128),
        half0(__shfl_sync(0xffffffffu, threadIdx.x / 128, 0) * 32),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        channel(threadIdx.x % 32 * 2),
        own_dim(static_cast<int>(kKeys ? a.K : a.V)),
        other_dim(static_cast<int>(kKeys ? a.V : a.K)),
        other_tiles((static_cast<uint32_t>(other_dim) + kTile - 1) / kTile),
        own_x(kKeys ? a.q : a.dout),
        own_y(kKeys ? a.k : a.v),
        other_x(kKeys ? a.dout : a.q),
        other_y(kKeys ? a.v : a.k),
        own_gates(kKeys ? a.gk : a.gv),
        other_gates(kKeys ? a.gv : a.gk),
        tables(*reinterpret_cast<Tables*>(memory)),
        score(reinterpret_cast<Bf16*>(memory + Traits::kTableBytes)),
        x(score + kTile * kTile),
        y(x + kTile * kTile),
        work(y + kTile * kTile),
        resident(work + Traits::kWorkBytes / 2) {}

  /// Own gates of the chunk, where they are fetched; then nothing is resident.
  __device__ __forceinline__ float* gates() const { return reinterpret_cast<float*>(work + Traits::kWorkBytes / 2); }

  /// What score leaves of its numbers, until dy from states takes its place.
  __device__ __forceinline__ Bf16* score_rest() const {
    return work + kTile * kTile + kChunk * kSumWidth * (sizeof(float) / sizeof(Bf16));
  }
  __device__ __forceinline__ bool scalar() const { return kKeys && kNumber && a.gate == Gate::kScalar; }
  __device__ __forceinline__ NumberDecay& number() { return *reinterpret_cast<NumberDecay*>(tables.number); }
  __device__ __forceinline__ Bf16* resident_x(int tile) { return resident + tile * kTile * kTile; }
  __device__ __forceinline__ Bf16* resident_y(int tile) {
    return resident + ((kDx ? other_tiles : 0) + tile) * kTile * kTile;
  }

  // Scores where the other side has channels, and its decayed x and y, kept for all own tiles. ------------------------

  __device__ __forceinline__ void make_scores() {
    LevelScores scores;
    float own = 0;
    copy_other(0);
    for (int tile = 0; tile < other_tiles; ++tile) {
      ChannelDecay decay;
      decay.read(a, other_gates, other_dim, at, tile * kTile + channel);
      tables.other_sums[warp][lane] = decay.total();
      wait_copies<0>();
      __syncthreads();
      const OuterDecay outer(tables.other_sums);
      if constexpr (kGates) {
        if (warp == 0) *reinterpret_cast<float2*>(tables.other_whole + tile * kTile + channel) = outer.whole;
      }
      own += row_product(x, y);
      write_levels(decay, tables.other_sums, x, y, work);
      write_resident(decay, outer, tile);
      __syncthreads();
      if (tile + 1 < other_tiles) copy_other(tile + 1);
      scores.add(work, warp, lane);
    }
    add_up_rows(a.scale * own, tables.own);
    scores.write(a.scale, warp, lane, score);
    __syncthreads();
  }

  __device__ __forceinline__ void copy_other(int tile) {
    copy_tile(a, other_x, other_dim, at, tile * kTile, x);
    copy_tile(a, other_y, other_dim, at, tile * kTile, y);
    commit_copies();
  }
  __device__ __forceinline__ void write_resident(const ChannelDecay& decay, const OuterDecay& outer, int tile) {
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int row = warp * kSub + t;
      if constexpr (kDx) {
        const float2 factor = a.scale * (decay.through[t] * outer.through);
        put_pair(resident_x(tile), row, channel, factor * load_pair(x, row, channel));
      }
      if constexpr (kDy) {
        put_pair(resident_y(tile), row, channel, (decay.after[t] * outer.after) * load_pair(y, row, channel));
      }
    }
  }

  /// Starts to copy channels [col0, col0 + 64) of the chunk; with spans a dimension has whole tiles of them.
  __device__ __forceinline__ void copy(const void* x, int dim, int col0, Bf16* to) const {
    if constexpr (kSpan) {
      const auto* from = channel_at(static_cast<const Bf16*>(x), row_at(a, at, piece_row()), dim, col0 + piece_col());
      copy_rows<kThreads, 1>(threadIdx.x, from, static_cast<int>(a.H) * dim, at.n, to);
    } else {
      copy_tile(a, x, dim, at, col0, to);
    }
  }

  /// sum += score z, or its transpose z, over tokens; with kGroups started.
  template <Lies kScore>
  __device__ __forceinline__ void add_scores(const Bf16* scores, const Bf16* z, Accumulator& sum) const {
    const int first = kScore == Lies::kRows ? 0 : piece / 2, last = kScore == Lies::kRows ? piece / 2 + 1 : 4;
    if constexpr (Traits::kGroups) {
      add_tiles<kScore, Lies::kRows>(sum, scores, z, piece / 2 * 16, half0, lane, first, last);
    } else {
      multiply_tiles<kScore, Lies::kRows>(scores, z, piece, lane, first, last, sum);
    }
  }

  // The states. -------------------------------------------------------------------------------------------------------

  /// dx = x H, dy = y DH over the other side, without the own side's decays; and scores, unless they are there already.
  __device__ __forceinline__ void meet_states(int col0, Accumulator& dx, Accumulator& dy, float (&anchors)[4]) {
    constexpr Lies kState = kKeys ? Lies::kColumns : Lies::kRows;
    constexpr int kSize = kTile * kTile;
    Bf16 *h_tile = work, *dh_tile = work + kSize, *stage = work + 2 * kSize;
    const float* h_state = a.state + state_offset(a, at, at.chunk);
    const float* dh_state = a.dstate + state_offset(a, at, at.chunk + 1);
    StateTile h, dh;
    Accumulator sums;
    clear(sums);
    const auto load = [&](int tile) {
      if constexpr (!kOther) {
        copy_tile(a, other_x, other_dim, at, tile * kTile, stage + tile % 2 * 2 * kSize);
        copy_tile(a, other_y, other_dim, at, tile * kTile, stage + (tile % 2 * 2 + 1) * kSize);
      }
      commit_copies();
      const int row0 = kKeys ? col0 : tile * kTile, first_col = kKeys ? tile * kTile : col0;
      if constexpr (kDx) h.load(a, h_state, row0, first_col);
      if constexpr (kDy) dh.load(a, dh_state, row0, first_col);
    };
    load(0);
    for (int tile = 0; tile < other_tiles; ++tile) {
      if constexpr (kDx) h.store(h_tile);
      if constexpr (kDy) dh.store(dh_tile);
      if constexpr (kGates || (kKeys && kNumber)) add_anchors(h, dh, tile, anchors);
      wait_copies<0>();
      __syncthreads();
      if (tile + 1 < other_tiles) load(tile + 1);
      const Bf16* left_x = kOther ? resident_x(tile) : stage + tile % 2 * 2 * kSize;
      const Bf16* left_y = kOther ? resident_y(tile) : stage + (tile % 2 * 2 + 1) * kSize;
      if (!kOther && !above_diagonal()) {
        multiply_tiles<Lies::kRows, Lies::kColumns>(left_x, left_y, piece, lane, 0, 4, sums);
      }
      if constexpr (kDx) multiply_tiles<Lies::kRows, kState>(left_x, h_tile, piece, lane, 0, 4, dx);
      if constexpr (kDy) multiply_tiles<Lies::kRows, kState>(left_y, dh_tile, piece, lane, 0, 4, dy);
      __syncthreads();
    }
    if constexpr (!kOther) write_scores(sums);
  }

  __device__ __forceinline__ bool above_diagonal() const { return piece / 2 < 2 && piece % 2 == 1; }

  /// Rows (keys) or columns (values) of h * dh, summed over the other side with its decay of the whole chunk.
  __device__ __forceinline__ void add_anchors(const StateTile& h, const StateTile& dh, int tile,
                                              float (&anchors)[4]) const {
    const auto decay = [&](int at_other) { return kOther ? tables.other_whole[kOther ? at_other : 0] : 1.0f; };
    const int col = tile * kTile + StateTile::col();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float p[4] = {h.x[i].x * dh.x[i].x, h.x[i].y * dh.x[i].y, h.x[i].z * dh.x[i].z, h.x[i].w * dh.x[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (kKeys) {
          anchors[i] += p[j] * decay(col + j);
        } else {
          anchors[j] += p[j] * decay(tile * kTile + StateTile::row(i));
        }
      }
    }
  }

  /// Zeros above the diagonal, of whole pieces only where products by warpgroups read them.
  __device__ __forceinline__ void write_scores(Accumulator& sums) {
    if constexpr (kWarpgroups && Traits::kSplit) return write_score_pieces(sums);
    if (above_diagonal() && !(kWarpgroups && Traits::kGroups)) return;
    for_pairs(piece, lane, sums, [&](int row, int col, float p, float q) {
      if (row == col) tables.own[row] = a.scale * p;
      if (row == col + 1) tables.own[row] = a.scale * q;
      const auto weigh = [&](int j, float value) {
        if (row <= j) return 0.0f;
        if constexpr (kNumber) value *= number().between(row, j);
        return a.scale * value;
      };
      const float2 pair = make_float2(weigh(col, p), weigh(col + 1, q));
      put_pair(score, row, col, pair);
      if constexpr (Traits::kSplit) put_pair(score_rest(), row, col, pair - rounded(pair));
    });
  }
  /// The same in pieces of 16 x 16, of decays that come later.
  __device__ __forceinline__ void write_score_pieces(Accumulator& sums) {
    const int row0 = __shfl_sync(0xffffffffu, piece, 0) / 2 * 16;
    const int below = lane / 4 - lane % 4 * 2;  // of a block on the diagonal: both of a pair, the first, or none
    const uint32_t under = below > 1 ? 0xffffffffu : below == 1 ? 0xffffu : 0u;
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      const int col0 = half0 + n * 8;
      uint32_t x[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
      if (col0 <= row0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* sum = sums[n + i / 2] + i % 2 * 2;
          const float2 pair = {a.scale * sum[0], a.scale * sum[1]};
          x[i] = pack(pair.x, pair.y);
          const float2 left = pair - unpack(x[i]);
          rest[i] = pack(left.x, left.y);
          if (col0 == row0 && i % 3 == 0 && (below == 0 || below == 1)) {
            tables.own[row0 + lane / 4 + i % 2 * 8] = below == 0 ? pair.x : pair.y;
          }
        }
        if (col0 == row0) {
          x[0] &= under, x[2] = 0, x[3] &= under;
          rest[0] &= under, rest[2] = 0, rest[3] &= under;
        }
      }
      store_matrices(piece_address<Lies::kRows>(score, row0, col0, lane), x);
      store_matrices(piece_address<Lies::kRows>(score_rest(), row0, col0, lane), rest);
    }
  }
};

}  // namespace baton::cuda::attention
