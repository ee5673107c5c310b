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
// linear_attention_tile.cuh says; what is done channel by channel is done by thread i for 16 tokens of channel i % 64.
// No exponent is positive: linear_attention_decay.cuh.
#pragma once

#include "kernels/cuda/linear_attention_pairs.cuh"

namespace baton::cuda::attention {

/// kOwn, kOther: that side's decays have channels. Neither: one number a token, on the keys.
template <Pass kPass, bool kOwn, bool kOther>
struct PassTraits {
  static constexpr bool kKeys = kPass == Pass::kKeys;
  static constexpr bool kNumber = !kOwn && !kOther;
  static constexpr bool kDx = kPass != Pass::kValues || kOwn;
  static constexpr bool kDy = kPass != Pass::kOutput;
  static constexpr bool kGates = kOwn && kDy;
  static constexpr int kMaxOther = 512;        // channels of the other side where its decays meet the anchors
  static constexpr int kSumWidth = kTile + 8;  // of a float32 tile: rows 8 banks apart

  struct Tables {
    float own[kChunk];
    float own_sums[kOwn ? kNumSubs * kTile : 1], other_sums[kOther ? kNumSubs * kTile : 1];
    float other_whole[kGates && kOther ? kMaxOther : 1];
    float anchor[kTile];
    float scan[kGates ? 3 : 1][kNumSubs * kTile];
    float rows[kKeys && kNumber ? 2 : 1][2][kChunk];  // scalar gates: sums over channels, by column half
    alignas(16) unsigned char number[kNumber ? sizeof(NumberDecay) : 16];
  };
  // Bytes of shared memory, in this order.
  static constexpr int kTableBytes = (sizeof(Tables) + 127) / 128 * 128;
  static constexpr int kScoreBytes = kTileBytes;
  static constexpr int kXYBytes = 2 * kTileBytes;  // own x and y; while scores are made, the other side's
  static constexpr int kStageBytes = 2 * kTileBytes + (kOther ? 0 : 4 * kTileBytes);  // H, DH; x, y of two steps
  static constexpr int kLevelBytes = kOther ? kLevels * kTileBytes : 0;
  static constexpr int kClimbBytes = kOwn ? kTileBytes + 3 * kChunk * kSumWidth * 4 : 0;
  static constexpr int max_of(int a, int b) { return a > b ? a : b; }
  static constexpr int kWorkBytes = max_of(kStageBytes, max_of(kLevelBytes, kClimbBytes));
  static int64_t num_tiles(int64_t dim) { return (dim + kTile - 1) / kTile; }
  static int64_t shared_bytes(const Arguments& a) {
    const int64_t resident = kOther ? (kDx + kDy) * num_tiles(kKeys ? a.V : a.K) * kTileBytes : 0;
    return kTableBytes + kScoreBytes + kXYBytes + kWorkBytes + resident;
  }
  static bool fits(const Arguments& a, int64_t bytes) {
    if (kGates && kOther && (kKeys ? a.V : a.K) > kMaxOther) return false;
    return shared_bytes(a) <= bytes;
  }
};

template <Pass kPass, bool kOwn, bool kOther>
struct PassBlock : PassTraits<kPass, kOwn, kOther> {
  using Traits = PassTraits<kPass, kOwn, kOther>;
  using Traits::kDx, Traits::kDy, Traits::kGates, Traits::kKeys, Traits::kNumber, Traits::kSumWidth;
  using typename Traits::Tables;

  const Arguments& a;
  Stretch at;
  int warp, lane, sub, channel;
  int64_t own_dim, other_dim;
  int other_tiles;
  const void *own_x, *own_y, *other_x, *other_y;
  const float *own_gates, *other_gates;
  Tables& tables;
  Bf16 *score, *x, *y, *work, *resident;
  float anchor_total = 0;  // scalar gates

  __device__ __forceinline__ PassBlock(const Arguments& arguments, int64_t item, unsigned char* memory)
      : a(arguments),
        at(chunk_at(arguments, item)),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        sub(threadIdx.x / kTile),
        channel(threadIdx.x % kTile),
        own_dim(kKeys ? a.K : a.V),
        other_dim(kKeys ? a.V : a.K),
        other_tiles(static_cast<int>((other_dim + kTile - 1) / kTile)),
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

  __device__ __forceinline__ bool scalar() const { return kKeys && kNumber && a.gate == Gate::kScalar; }
  __device__ __forceinline__ NumberDecay& number() { return *reinterpret_cast<NumberDecay*>(tables.number); }
  __device__ __forceinline__ Bf16* resident_x(int tile) { return resident + tile * kTile * kTile; }
  __device__ __forceinline__ Bf16* resident_y(int tile) {
    return resident + ((kDx ? other_tiles : 0) + tile) * kTile * kTile;
  }

  __device__ __forceinline__ void run(int first_tile, int last_tile) {
    if constexpr (kNumber) number().make(a, at);
    if (scalar() && threadIdx.x < kChunk) {
      for (int i = 0; i < 4; ++i) tables.rows[i / 2][i % 2][threadIdx.x] = 0;
    }
    if constexpr (kOther) make_scores();
    for (int tile = first_tile; tile < last_tile; ++tile) run_tile(tile * kTile);
    if constexpr (kKeys && kNumber) {
      if (scalar()) finish_scalar();
    }
  }

  // Scores where the other side has channels, and its decayed x and y, kept for all own tiles. ------------------------

  __device__ __forceinline__ void make_scores() {
    LevelScores scores;
    float own = 0;
    copy_other(0);
    for (int tile = 0; tile < other_tiles; ++tile) {
      ChannelDecay decay;
      decay.read(a, other_gates, other_dim, at, tile * kTile + channel);
      tables.other_sums[sub * kTile + channel] = decay.total();
      wait_copies<0>();
      __syncthreads();
      const OuterDecay outer(tables.other_sums);
      if constexpr (kGates) {
        if (sub == 0) tables.other_whole[tile * kTile + channel] = outer.whole;
      }
      own += row_product();
      write_levels(decay, outer);
      write_resident(decay, outer, tile);
      __syncthreads();
      if (tile + 1 < other_tiles) copy_other(tile + 1);
      scores.add(work, warp, lane);
    }
    own += __shfl_xor_sync(0xffffffffu, own, 1);
    own += __shfl_xor_sync(0xffffffffu, own, 2);
    if (threadIdx.x % 4 == 0) tables.own[threadIdx.x / 4] = a.scale * own;
    scores.write(a.scale, warp, lane, score);
    __syncthreads();
  }

  __device__ __forceinline__ void copy_other(int tile) {
    copy_tile(a, other_x, other_dim, at, tile * kTile, x);
    copy_tile(a, other_y, other_dim, at, tile * kTile, y);
    commit_copies();
  }
  /// A quarter of x_t . y_t, t = thread / 4.
  __device__ __forceinline__ float row_product() const {
    const int row = threadIdx.x / 4, col = threadIdx.x % 4 * 16;
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 16; c += 2) {
      const float2 left = load_pair(x, row, col + c), right = load_pair(y, row, col + c);
      sum = fmaf(left.x, right.x, fmaf(left.y, right.y, sum));
    }
    return sum;
  }
  __device__ __forceinline__ void write_levels(ChannelDecay& decay, const OuterDecay& outer) {
    constexpr int kSize = kTile * kTile;
    decay.begin();
    write_level<1, true>(decay, x, y, work);
    decay.climb<1>();
    write_level<2, true>(decay, x, y, work + kSize);
    decay.climb<2>();
    write_level<4, true>(decay, x, y, work + 2 * kSize);
    decay.climb<4>();
    write_level<8, true>(decay, x, y, work + 3 * kSize);
    decay.climb<8>();
    write_outer_level<true>(sub & 1, decay, 1.0f, x, y, work + 4 * kSize);
    write_outer_level<true>(sub & 2, decay, outer.level_32, x, y, work + 5 * kSize);
  }
  __device__ __forceinline__ void write_resident(const ChannelDecay& decay, const OuterDecay& outer, int tile) {
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int row = sub * kSub + t;
      if constexpr (kDx) {
        put(resident_x(tile), row, channel, at_place(x, row, channel) * (a.scale * (decay.through[t] * outer.through)));
      }
      if constexpr (kDy) {
        put(resident_y(tile), row, channel, at_place(y, row, channel) * (decay.after[t] * outer.after));
      }
    }
  }

  // One tile of own channels.
  // ------------------------------------------------------------------------------------------

  __device__ __forceinline__ void run_tile(int col0) {
    Accumulator dx, dy;
    clear(dx), clear(dy);
    float anchors[4] = {0, 0, 0, 0};
    if constexpr (kDy) copy_tile(a, own_x, own_dim, at, col0, x);
    copy_tile(a, own_y, own_dim, at, col0, y);
    meet_states(col0, dx, dy, anchors);
    if constexpr (kOwn) {
      finish_channels(col0, dx, dy, anchors);
    } else {
      finish_rows(col0, dx, dy, anchors);
    }
    __syncthreads();  // x, y and the work tiles are free again
  }

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
        multiply_tiles<Lies::kRows, Lies::kColumns>(left_x, left_y, warp, lane, 0, 4, sums);
      }
      if constexpr (kDx) multiply_tiles<Lies::kRows, kState>(left_x, h_tile, warp, lane, 0, 4, dx);
      if constexpr (kDy) multiply_tiles<Lies::kRows, kState>(left_y, dh_tile, warp, lane, 0, 4, dy);
      __syncthreads();
    }
    if constexpr (!kOther) write_scores(sums);
  }

  __device__ __forceinline__ bool above_diagonal() const { return warp / 2 < 2 && warp % 2 == 1; }

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

  __device__ __forceinline__ void write_scores(Accumulator& sums) {
    if (above_diagonal()) return;
    for_pairs(warp, lane, sums, [&](int row, int col, float p, float q) {
      if (row == col) tables.own[row] = a.scale * p;
      if (row == col + 1) tables.own[row] = a.scale * q;
      const auto weigh = [&](int j, float value) {
        if (row <= j) return 0.0f;
        if constexpr (kNumber) value *= number().between(row, j);
        return a.scale * value;
      };
      *reinterpret_cast<uint32_t*>(score + place(row, col)) = pack(weigh(col, p), weigh(col + 1, q));
    });
  }

  // The own side has no channels of decay: everything stays where the products lie. -----------------------------------

  __device__ __forceinline__ void finish_rows(int col0, Accumulator& dx, Accumulator& dy, float (&anchors)[4]) {
    if constexpr (kNumber) {
      const NumberDecay& decay = number();
      for_pairs(warp, lane, dx, [&](int row, int, float& p, float& q) {
        const float factor = a.scale * decay.through[row];
        p *= factor, q *= factor;
      });
      for_pairs(warp, lane, dy,
                [&](int row, int, float& p, float& q) { p *= decay.after[row], q *= decay.after[row]; });
    }
    if (scalar()) {
      anchor_total += anchors[0] + anchors[1] + anchors[2] + anchors[3];
      add_row_sums(0, [&](int row, int col, int n, int i) {
        const float2 key = load_pair(y, row, col);
        return key.x * dy[n][i] + key.y * dy[n][i + 1];
      });
    }
    __syncthreads();  // scores
    if constexpr (kDx) multiply_tiles<Lies::kRows, Lies::kRows>(score, y, warp, lane, 0, warp / 2 + 1, dx);
    if constexpr (kDy) multiply_tiles<Lies::kColumns, Lies::kRows>(score, x, warp, lane, warp / 2, 4, dy);
    if (scalar()) {
      add_row_sums(1, [&](int row, int col, int n, int i) {
        const float2 query = load_pair(x, row, col), key = load_pair(y, row, col);
        return query.x * dx[n][i] - key.x * dy[n][i] + (query.y * dx[n][i + 1] - key.y * dy[n][i + 1]);
      });
    }
    add_own(dx, y, work);
    if constexpr (kDy) add_own(dy, x, work + kTile * kTile);
    __syncthreads();
    if (kPass == Pass::kOutput) write_tile(a, work, own_dim, at, col0, a.o);
    if (kKeys) write_tile(a, work, own_dim, at, col0, a.dq);
    if (kDy) write_tile(a, work + kTile * kTile, own_dim, at, col0, kKeys ? a.dk : a.dv);
  }

  /// tables.rows[which] += sums over this tile's channels of f, each warp its half of the columns.
  template <class F>
  __device__ __forceinline__ void add_row_sums(int which, F&& f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp / 2 * 16 + lane / 4 + half * 8;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) sum += f(row, warp % 2 * 32 + n * 8 + lane % 4 * 2, n, 2 * half);
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (lane % 4 == 0) tables.rows[kKeys && kNumber ? which : 0][warp % 2][row] += sum;
    }
  }

  /// to = sum + own_t * from, rounded.
  __device__ __forceinline__ void add_own(Accumulator& sum, const Bf16* from, Bf16* to) {
    for_pairs(warp, lane, sum, [&](int row, int col, float p, float q) {
      const float2 other = load_pair(from, row, col);
      const float own = tables.own[row];
      *reinterpret_cast<uint32_t*>(to + place(row, col)) = pack(fmaf(own, other.x, p), fmaf(own, other.y, q));
    });
  }

  /// rows[0]: y * dy from states; rows[1]: x * dx - y * (all of dy). One thread a token.
  __device__ __forceinline__ void finish_scalar() {
    float sum = anchor_total;
#pragma unroll
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (lane == 0) tables.anchor[warp] = sum;
    __syncthreads();
    const int t = threadIdx.x;
    if (t >= at.n) return;
    const NumberDecay& decay = number();
    float anchor = 0, result = 0;
    for (int i = 0; i < kThreads / 32; ++i) anchor += tables.anchor[i];
    const auto from_state = [&](int s) { return tables.rows[0][0][s] + tables.rows[0][1][s]; };
    for (int s = t; s < at.n && (s == t || !isinf(decay.gate[s])); ++s) {
      constexpr int kRest = kKeys && kNumber ? 1 : 0;
      result += tables.rows[kRest][0][s] + tables.rows[kRest][1][s] + from_state(s);
    }
    for (int s = 0; s < t; ++s) result += from_state(s);
    result += decay.whole() * anchor;
    a.dgk[token_offset(a, at, 1) + t * a.H] = isinf(decay.gate[t]) ? 0.0f : result;
  }

  // The own side has channels of decay: products go through shared memory to the thread of their channel. -------------

  struct Climb {
    Bf16* z;
    float *dx_state, *dy_state, *sums;
    float dx[kSub], dy[kSub];
  };

  __device__ __forceinline__ void write_sums(Accumulator& sum, float* to) {
    for_pairs(warp, lane, sum, [&](int row, int col, float p, float q) {
      *reinterpret_cast<float2*>(to + row * kSumWidth + col) = make_float2(p, q);
    });
  }
  __device__ __forceinline__ float& sum_at(float* sums, int t) const {
    return sums[(sub * kSub + t) * kSumWidth + channel];
  }

  template <int kM>
  __device__ __forceinline__ void inner_level(ChannelDecay& decay, Climb& climb) {
    write_level<kM, kDy>(decay, x, y, climb.z);
    multiply_level_to<kM == 1 ? 0 : kM == 2 ? 1 : kM == 4 ? 2 : 3>(climb);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const float sum = sum_at(climb.sums, t);
      if (t & kM) {
        if constexpr (kDx) climb.dx[t] = fmaf(decay.through[t], sum, climb.dx[t]);
      } else if constexpr (kDy) {
        climb.dy[t] = fmaf(decay.after[t], sum, climb.dy[t]);
      }
    }
    decay.template climb<kM>();
  }
  template <int kLevel>
  __device__ __forceinline__ void outer_level(const ChannelDecay& decay, float outer, Climb& climb) {
    const bool query = sub & (kLevel == 4 ? 1 : 2);
    write_outer_level<kDy>(query, decay, outer, x, y, climb.z);
    multiply_level_to<kLevel>(climb);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const float sum = outer * sum_at(climb.sums, t);
      if (query) {
        if constexpr (kDx) climb.dx[t] = fmaf(decay.through[t], sum, climb.dx[t]);
      } else if constexpr (kDy) {
        climb.dy[t] = fmaf(decay.after[t], sum, climb.dy[t]);
      }
    }
  }
  template <int kLevel>
  __device__ __forceinline__ void multiply_level_to(Climb& climb) {
    Accumulator sum;
    __syncthreads();
    multiply_level<kLevel>(score, climb.z, warp, lane, sum);
    write_sums(sum, climb.sums);
    __syncthreads();
  }

  __device__ __forceinline__ void finish_channels(int col0, Accumulator& dx, Accumulator& dy, float (&anchors)[4]) {
    Climb climb;
    climb.z = work;
    climb.dx_state = reinterpret_cast<float*>(work + kTile * kTile);
    climb.dy_state = climb.dx_state + kChunk * kSumWidth;
    climb.sums = climb.dy_state + kChunk * kSumWidth;
    if constexpr (kDx) write_sums(dx, climb.dx_state);
    if constexpr (kDy) write_sums(dy, climb.dy_state);
    if constexpr (kGates) write_anchors(anchors, climb.sums);
#pragma unroll
    for (int t = 0; t < kSub; ++t) climb.dx[t] = climb.dy[t] = 0;
    ChannelDecay decay;
    const uint32_t forgets = decay.read(a, own_gates, own_dim, at, col0 + channel);
    tables.own_sums[sub * kTile + channel] = decay.total();
    __syncthreads();
    if constexpr (kGates) add_up_anchors(climb.sums);
    const OuterDecay outer(tables.own_sums);
    decay.begin();
    inner_level<1>(decay, climb), inner_level<2>(decay, climb), inner_level<4>(decay, climb);
    inner_level<8>(decay, climb);
    outer_level<4>(decay, 1.0f, climb);
    outer_level<5>(decay, outer.level_32, climb);
    finish_thread(col0, decay, outer, forgets, climb);
    __syncthreads();
    if (kPass == Pass::kOutput) write_tile(a, y, own_dim, at, col0, a.o);
    if (kKeys) write_tile(a, x, own_dim, at, col0, a.dq);
    if (kDy) write_tile(a, y, own_dim, at, col0, kKeys ? a.dk : a.dv);
  }

  /// Adds what came from states, makes the gate gradient, and leaves the results, rounded, in place of x and y.
  __device__ __forceinline__ void finish_thread(int col0, const ChannelDecay& decay, const OuterDecay& outer,
                                                uint32_t forgets, Climb& climb) {
    float gate[kSub];
    float before = 0;
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      if constexpr (kDx) {
        const float factor = (kOther ? 1.0f : a.scale) * (decay.through[t] * outer.through);
        climb.dx[t] = fmaf(factor, sum_at(climb.dx_state, t), climb.dx[t]);
      }
      if constexpr (kGates) {
        const float from_state = decay.after[t] * outer.after * sum_at(climb.dy_state, t);
        gate[t] = before;
        before = fmaf(at_place(y, sub * kSub + t, channel), from_state, before);
        sum_at(climb.dy_state, t) = from_state;
      }
    }
    if constexpr (kGates) write_gate_gradient(col0, outer, forgets, before, gate, climb);
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const int row = sub * kSub + t;
      const float own = tables.own[row], key = at_place(y, row, channel);
      if constexpr (kKeys) {
        const float query = at_place(x, row, channel);
        put(x, row, channel, fmaf(own, key, climb.dx[t]));
        put(y, row, channel, fmaf(own, query, climb.dy[t] + sum_at(climb.dy_state, t)));
      } else if constexpr (kDy) {
        put(y, row, channel, fmaf(own, at_place(x, row, channel), climb.dy[t] + sum_at(climb.dy_state, t)));
      } else {
        put(y, row, channel, fmaf(own, key, climb.dx[t]));
      }
    }
  }

  /// gate: sums of y * (dy from states) over the thread's tokens before t; `before`: over all of them.
  __device__ __forceinline__ void write_gate_gradient(int col0, const OuterDecay& outer, uint32_t forgets, float before,
                                                      float (&gate)[kSub], const Climb& climb) {
    float after = 0;
#pragma unroll
    for (int t = kSub - 1; t >= 0; --t) {
      const float query = at_place(x, sub * kSub + t, channel), key = at_place(y, sub * kSub + t, channel);
      after += query * climb.dx[t] - key * climb.dy[t];
      gate[t] += after;
      if (forgets >> t & 1) after = 0;
    }
    const auto& scan = tables.scan;
    tables.scan[0][sub * kTile + channel] = before;
    tables.scan[kGates ? 1 : 0][sub * kTile + channel] = after;
    tables.scan[kGates ? 2 : 0][sub * kTile + channel] = forgets != 0 ? 1.0f : 0.0f;
    __syncthreads();
    float from_left = outer.whole * tables.anchor[channel], from_right = 0;
    for (int other = 0; other < sub; ++other) from_left += scan[0][other * kTile + channel];
    for (int other = kNumSubs - 1; other > sub; --other) {
      const int place_in = other * kTile + channel;
      if (scan[kGates ? 2 : 0][place_in] != 0) from_right = 0;
      from_right += scan[kGates ? 1 : 0][place_in];
    }
    if (col0 + channel >= own_dim) return;
    float* to = (kKeys ? a.dgk : a.dgv) + token_offset(a, at, own_dim) + col0 + channel;
#pragma unroll
    for (int t = 0; t < kSub; ++t) {
      const bool cut = forgets >> t >> 1 != 0, forget = forgets >> t & 1;  // cut: forgotten at a later token
      const float value = gate[t] + from_left + (cut ? 0.0f : from_right);
      if (sub * kSub + t < at.n) to[(sub * kSub + t) * a.H * own_dim] = forget ? 0.0f : value;
    }
  }

  /// Sums over the threads that loaded a row (keys) or a column (values) of the states: parts first, then all.
  __device__ __forceinline__ void write_anchors(float (&anchors)[4], float* parts) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float sum = anchors[i];
      if constexpr (kKeys) {
#pragma unroll
        for (int m = 8; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
        if (lane % 16 == 0) parts[StateTile::row(i)] = sum;
      } else {
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
        if (lane < 16) parts[warp * kTile + StateTile::col() + i] = sum;
      }
    }
  }
  __device__ __forceinline__ void add_up_anchors(const float* parts) {
    if (threadIdx.x >= kTile) return;
    float sum = 0;
    for (int i = 0; i < (kKeys ? 1 : kThreads / 32); ++i) sum += parts[i * kTile + threadIdx.x];
    tables.anchor[threadIdx.x] = sum;
  }
};

template <Pass kPass, bool kOwn, bool kOther>
__global__ void __launch_bounds__(kThreads, 2) pass_kernel(Arguments a, int tiles_per_block) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int64_t own_dim = kPass == Pass::kKeys ? a.K : a.V;
  const int tiles = static_cast<int>((own_dim + kTile - 1) / kTile);
  const int groups = (tiles + tiles_per_block - 1) / tiles_per_block;
  const int first = static_cast<int>(blockIdx.x % groups) * tiles_per_block;
  PassBlock<kPass, kOwn, kOther> block(a, blockIdx.x / groups, memory);
  block.run(first, min(first + tiles_per_block, tiles));
}

template <Pass kPass, bool kOwn, bool kOther>
cudaError_t launch_pass(const Arguments& a, cudaStream_t stream) {
  using Traits = PassTraits<kPass, kOwn, kOther>;
  const auto kernel = pass_kernel<kPass, kOwn, kOther>;
  const int bytes = static_cast<int>(Traits::shared_bytes(a));
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int64_t items = a.B * a.H * a.N, tiles = Traits::num_tiles(Traits::kKeys ? a.K : a.V);
  if (items == 0) return cudaSuccess;
  // Scores of channels are dear and made once for all tiles, unless that leaves the device idle; a scalar's gate
  // gradient is a sum over all tiles; else every tile is a block of its own.
  constexpr int64_t kFew = 264;
  const bool whole = (kOther && items >= kFew) || (Traits::kKeys && a.gate == Gate::kScalar);
  const int64_t blocks = whole ? items : items * tiles;
  kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(a, whole ? static_cast<int>(tiles) : 1);
  return cudaGetLastError();
}

}  // namespace baton::cuda::attention
