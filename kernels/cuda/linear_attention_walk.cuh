// A walk over the chunks of spans on tensor cores (bfloat16), the state in registers: one computation, which makes
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
// A warp has 16 own channels and all other channels. S is kept as accumulators of mma, whose layout is that of the left
// operand of the next product, so it stays in registers. Tiles come one chunk ahead, by cp.async, or, on Hopper and
// where decays are numbers, by maps (linear_attention_maps.h); shared memory is WalkTraits::kSharedBytes. Rounded to
// bfloat16: S as an operand, P, weighted own_j, outputs. Sums are float32. No exponent is positive
// (linear_attention_decay.cuh).
#pragma once

#include "kernels/cuda/linear_attention_walk_sums.cuh"

namespace baton::cuda::attention {

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
using WalkBase =
    std::conditional_t<WalkTraits<kKind, kChannels, kOwnTiles, kTiles>::kSums,
                       WalkSums<kKind, kChannels, kOwnTiles, kTiles>, WalkState<kKind, kChannels, kOwnTiles, kTiles>>;

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
struct WalkBlock : WalkBase<kKind, kChannels, kOwnTiles, kTiles> {
  using Base = WalkBase<kKind, kChannels, kOwnTiles, kTiles>;
  using Base::a, Base::w, Base::warp, Base::lane, Base::own0, Base::span, Base::tables, Base::state;
  using Base::carry, Base::own_col, Base::read_tile, Base::reversed, Base::scores, Base::update_tile, Base::Base;
  using Base::dk_side, Base::kBack, Base::kRead, Base::kSides, Base::kSums, Base::kWarps;
  // Blocks of 8 tokens whose outputs are made at once, as registers allow.
  static constexpr int kOutBlocks = kTiles == 2 && !Base::Traits::kFused ? 4 : 8;
  static constexpr bool kScores = kRead && !kChannels;                // are made here,
  static constexpr bool kDecaysLater = kScores && (kSums || !kBack);  // and decays meanwhile, as registers allow
  static constexpr bool kGather = kWarpgroups && (kOutBlocks == 8 || Base::kSides == 2);

  __device__ __forceinline__ void run() {
    const int first = span * static_cast<int>(w.chunks_per_span);
    const int count = static_cast<int>(min(w.spans_per_walk * w.chunks_per_span, a.N - first));
    const auto chunk = [&](int i) { return this->stretch(first + (reversed() ? count - 1 - i : i)); };
    if constexpr (kSums) this->copy_anchor(0, count);
    this->begin_copies();
    this->start_copies(chunk(0), 0);
    this->begin_state();
    if constexpr (kScores) clear_scores();
    for (int i = 0; i < count; ++i) {
      const int stage = i % 2;
      const Stretch at = chunk(i);
      this->wait_chunk(i);
      __syncthreads();
      float2 gates{};
      if constexpr (kDecaysLater) {
        if (!this->has_decays(at)) gates = NumberDecay::read(a, at);
      }
      const auto copy_next = [&] {
        if constexpr (kSums) this->copy_anchor(i + 1, count);
        if (i + 1 < count) this->start_copies(chunk(i + 1), 1 - stage);
        if constexpr (kSums) {
          if (i + 1 < count) this->prefetch_queries(chunk(i + 1));
          if (i > 0) this->write_sums(chunk(i - 1));
        }
        if constexpr (kDecaysLater) {
          if (i + 1 < count) this->prefetch_gates(chunk(i + 1));
          if (!this->has_decays(at)) this->make_decays(at, gates);
        }
      };
      if constexpr (!kScores) copy_next();
      if constexpr (!kChannels && !kDecaysLater) {
        if (!this->has_decays(at)) this->make_decays(at, NumberDecay::read(a, at));
      }
      if constexpr (kSums) this->anchor(i, count), this->ask(at, 0);
      if (w.chunk_states != nullptr) this->write_chunk_state(at);
      if constexpr (kScores) make_scores(stage, copy_next);
      if constexpr (kRead) {
        read_chunk(at, stage, nullptr, [] {});
      } else {
        uint32_t own[4][4];
        this->load_own(stage, own);
        this->decay_state(stage);
        this->advance(stage, own);
      }
      wait_products();
    }
    if constexpr (kSums) this->end_sums(chunk(count - 1), count);
    if (carry()) this->end_carry();
    if (w.last != nullptr) this->end_shard();
  }

  /// Outputs, and the state's way over the chunk, whose products run while outputs are written, or, where `own` is to
  /// be weighed first, while they are sent. rest: what rounding left of the scores, with kRests; done() is called once
  /// scores are needed no more.
  template <class Done>
  __device__ __forceinline__ void read_chunk(const Stretch& at, int stage, const Bf16* rest, Done&& done) {
    constexpr bool kStateFirst = kChannels && kOutBlocks == 8;
    uint32_t own[4][4];
#pragma unroll 1
    for (int first = 0; first < 8; first += kOutBlocks) {
      float out[kOutBlocks][4] = {};  // rows: own channels; columns: tokens
      float products[kOutBlocks][2];
      add_inter(stage, first, out);
      if constexpr (kSums) {
        this->multiply_own(stage, first, out, products);
        if (first + kOutBlocks < 8) this->ask(at, first + kOutBlocks);
      }
      this->load_own(stage, own);
      add_intra(scores(stage), first, own, out);
      if constexpr (Base::kRests) add_intra(rest, first, own, out);
      if constexpr (kSums) this->put_own(first, products);
      if constexpr (kOutBlocks == 8) this->decay_state(stage);
      if constexpr (kStateFirst) this->advance(stage, own);
      wait_products(kStateFirst ? 1 : 0);
      done();
      if constexpr (kGather) {
        gather_out(stage, first, out);
      } else {
        write_out(at, first, out);
      }
    }
    if constexpr (kOutBlocks != 8) {
      this->load_own(stage, own);
      this->decay_state(stage);
    }
    if constexpr (!kStateFirst) this->advance(stage, own);
    if constexpr (kGather) send_out(at, stage);
  }

  /// P. A warp has 16 rows; four warps, or twice four, share the columns. What lies above the diagonal in blocks of 16
  /// x 16 stays as `clear_scores` left it.
  template <class Meanwhile>
  __device__ __forceinline__ void make_scores(int stage, Meanwhile&& meanwhile) {
    const int lane = this->lane_anew();
    constexpr int kBlocks = 32 / kWarps;
    const int row0 = warp % 4 * 16, col0 = warp / 4 * 8 * kBlocks;
    float sums[kBlocks][4] = {};
    begin_products();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const Bf16 *read = read_tile(stage, tile), *update = update_tile(stage, tile);
      add_rows(sums, reversed() ? update : read, reversed() ? read : update, row0, col0, lane);
    }
    commit_products();
    meanwhile();
    wait_products();
    uint32_t rounded[kBlocks][2];
    if constexpr (kSums) this->round(sums, rounded);
    const auto& decay = tables.number;
    const int row = row0 + lane / 4, pair = lane % 4 * 2;
    if (decay.mild()) {
      const float rows[2] = {a.scale * decay.through[row], a.scale * decay.through[row + 8]};
      write_scores(row0, col0, sums, [&](int half, int col) {
        return rows[half] * *reinterpret_cast<const float2*>(decay.grown + col + pair);
      });
    } else {
      const auto between = [&](int i, int j) { return i == j ? 1.0f : decay.between(i, j); };
      write_scores(row0, col0, sums, [&](int half, int col) {
        const int i = row + 8 * half, j = col + pair;
        return a.scale * make_float2(between(i, j), between(i, j + 1));
      });
    }
    publish_tiles();
    __syncthreads();
    if constexpr (kSums && kSides == 2) this->add_pairs(rounded);
  }
  __device__ __forceinline__ void clear_scores() {
    for (int i = this->thread(); i < kTile * 8; i += 32 * kWarps) {
      reinterpret_cast<uint4*>(scores(0))[i] = make_uint4(0, 0, 0, 0);
    }
  }
  /// Sums by weights(half, col), of this lane's pair of columns from `col` and its row in that half of 16.
  template <int kBlocks, class Weights>
  __device__ __forceinline__ void write_scores(int row0, int col0, const float (&sums)[kBlocks][4], Weights&& weights) {
    const int lane = this->lane_anew();
    const int below = lane / 4 - lane % 4 * 2;  // of a block on the diagonal: both of a pair, the first, or none
    const uint32_t diagonal = below > 0 ? 0xffffffffu : below == 0 ? 0xffffu : 0u;
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      const int col = col0 + n * 8;
      if (col > row0) continue;
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i % 2, block = n + i / 2;
        const float2 w = weights(half, col0 + block * 8);
        x[i] = pack(sums[block][2 * half] * w.x, sums[block][2 * half + 1] * w.y);
      }
      if (col == row0) x[0] &= diagonal, x[2] = 0, x[3] &= diagonal;
      if constexpr (kWarpgroups) {
        store_matrices(piece_address<Lies::kRows>(scores(0), row0, col, lane), x);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          *reinterpret_cast<uint32_t*>(scores(0) + place(row0 + lane / 4 + i % 2 * 8, col + i / 2 * 8 + lane % 4 * 2)) =
              x[i];
        }
      }
    }
  }

  /// What tokens 8 first .. read of the state, by their weights.
  __device__ __forceinline__ void add_inter(int stage, int first, float (&out)[kOutBlocks][4]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint32_t left[4][4];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const auto &low = state[8 * tile + 2 * step], &high = state[8 * tile + 2 * step + 1];
        auto& x = left[step];
        x[0] = pack_anew(low[0], low[1]), x[1] = pack_anew(low[2], low[3]);
        x[2] = pack_anew(high[0], high[1]), x[3] = pack_anew(high[2], high[3]);
      }
      begin_products();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        add_products<Lies::kColumns, kOutBlocks>(out, 0, left[step], read_tile(stage, tile), step * 16, first * 8,
                                                 lane);
      }
      commit_products();
      const bool last = tile + 1 == kTiles;
      wait_products(kOutBlocks == 4 || (last && !kChannels) ? 0 : 1);  // registers of an earlier `left` are free then
    }
    if constexpr (!kChannels) weigh(first, out);
  }
  /// What they get of the chunk's tokens, started.
  __device__ __forceinline__ void add_intra(const Bf16* scores, int first, const uint32_t (&own)[4][4],
                                            float (&out)[kOutBlocks][4]) {
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      // kBack: a token reaches those before it.
      add_products<kBack ? Lies::kRows : Lies::kColumns, kOutBlocks>(out, 0, own[step], scores, step * 16, first * 8,
                                                                     lane, kBack ? 0 : 2 * step - first,
                                                                     kBack ? 2 * step + 2 - first : kOutBlocks);
    }
    commit_products();
  }
  /// Outputs by the weight of their token.
  __device__ __forceinline__ void weigh(int first, float (&out)[kOutBlocks][4]) {
    const int lane = this->lane_anew();
#pragma unroll
    for (int n = 0; n < kOutBlocks; ++n) {
      const float2 factor = *reinterpret_cast<const float2*>(tables.inter + (first + n) * 8 + lane % 4 * 2);
      out[n][0] *= factor.x, out[n][1] *= factor.y, out[n][2] *= factor.x, out[n][3] *= factor.y;
    }
  }
  /// A lane collects 16 bytes of a token in registers.
  __device__ __forceinline__ void write_out(const Stretch& at, int first, const float (&out)[kOutBlocks][4]) {
    const int quarter = lane % 4;  // of two blocks of own channels, for two blocks of tokens
    const int stride = static_cast<int>(a.H * w.own_dim);
    Bf16* to =
        channel_at(static_cast<Bf16*>(dk_side ? w.dk_out : w.out), row_at(a, at, (first + quarter / 2) * 8 + lane / 4),
                   static_cast<int>(w.own_dim), own0 + own_col() + quarter % 2 * 8);
#pragma unroll
    for (int n = 0; n < kOutBlocks; n += 2) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto& y = out[n + i];
        x[2 * i] = transpose(pack(y[0], y[1])), x[2 * i + 1] = transpose(pack(y[2], y[3]));
      }
      transpose_quad(lane, x);
      const int token = (first + n + quarter / 2) * 8 + lane / 4;
      if (token < at.n) store_16_bytes(x, to + n * 8 * stride);
    }
  }
  /// The same in shared memory, from which `send_out` takes them once all are there.
  __device__ __forceinline__ void gather_out(int stage, int first, const float (&out)[kOutBlocks][4]) {
    const int lane = this->lane_anew();
    Bf16* tile = this->out_tile(stage, own_col() / kTile);
    const int col = own_col() % kTile;
#pragma unroll
    for (int n = 0; n < kOutBlocks; n += 2) {
      const auto &y = out[n], &z = out[n + 1];
      const uint32_t x[4] = {pack(y[0], y[1]), pack(y[2], y[3]), pack(z[0], z[1]), pack(z[2], z[3])};
      const int token = (first + n + lane / 16) * 8 + lane % 8;
      store_matrices_transposed(shared_address(tile + place(token, col + lane / 8 % 2 * 8)), x);
    }
  }
  __device__ __forceinline__ void send_out(const Stretch& at, int stage) {
    __syncwarp();
    const int lane = this->lane_anew();
    const Bf16* tile = this->out_tile(stage, own_col() / kTile);
    const int stride = static_cast<int>(a.H * w.own_dim), piece = lane % 2 * 8;
    Bf16* to = channel_at(static_cast<Bf16*>(dk_side ? w.dk_out : w.out), row_at(a, at, lane / 2),
                          static_cast<int>(w.own_dim), own0 + own_col() + piece);
    const Bf16* from = tile + place(lane / 2, own_col() % kTile + piece);
    uint4 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = reinterpret_cast<const uint4&>(from[i * 16 * kTile]);
#pragma unroll
    for (int i = 0; i < 4; ++i) store_16_bytes_if(i * 16 + lane / 2 < at.n, x[i], to + i * 16 * stride);
  }
};

}  // namespace baton::cuda::attention
