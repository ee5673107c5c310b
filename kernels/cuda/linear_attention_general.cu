// Linear attention by plain float32 arithmetic: for checking, and for sizes that the tensor cores' kernels do not take.
// Equations as in linear_attention_carry.cu and linear_attention_pass.cuh; either dtype of activations, any K and V; no
// operand is rounded. Every side is treated as having channels of decay, in tiles of 32 channels.
//
// A block has one chunk of one head; thread i has channel i % 32 and tokens i / 32 + 8 n. Shared memory: float32 tiles
// of 64 tokens x 32 channels, rows of 33 numbers against bank conflicts. Decays by the tree of
// kernels/cpu/linear_attention_decay.h: exponents are plain sums of gates, never positive.
#include <cuda_bf16.h>
#include <math_constants.h>

#include "kernels/cuda/linear_attention_arguments.h"

namespace baton::cuda::attention {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 32, kRow = kWidth + 1;  // channels of a tile, and numbers from row to row
constexpr int kStep = kThreads / kWidth, kMine = kChunk / kStep;

__device__ float to_float(float x) { return x; }
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void set(float* to, float x) { *to = x; }
__device__ void set(__nv_bfloat16* to, float x) { *to = __float2bfloat16(x); }

enum class Side { kKeys, kValues };

/// Tokens [first, first + n) of one sequence and head, inside chunk `chunk`.
struct Stretch {
  int64_t batch, head, chunk, first;
  int n;
};

/// One side's tile: x queries, y keys, and its decays.
struct Tile {
  float x[kChunk][kRow], y[kChunk][kRow];
  float through[kChunk][kRow], after[kChunk][kRow];
};
/// exp of sums of gates over blocks of m tokens: block b of m is row 128 - 128 / m + b.
struct Tree {
  float node[2 * kChunk - 1][kRow];
  bool forget[kChunk][kWidth];
  __device__ float* level(int m) { return node[2 * kChunk - 2 * kChunk / m]; }
  __device__ const float* whole() const { return node[2 * kChunk - 2]; }
};

struct Reader {
  const Arguments& a;
  Stretch at;

  __device__ int64_t offset(int t, int64_t dim) const {
    return ((at.batch * a.T + at.first + t) * a.H + at.head) * dim;
  }
  __device__ int64_t dim(Side side) const { return side == Side::kKeys ? a.K : a.V; }

  __device__ float gate(Side side, int t, int64_t channel) const {
    if (t >= at.n || channel >= dim(side)) return 0;
    if (side == Side::kValues && a.gate != Gate::kBilinear) return 0;
    if (a.starts != nullptr && a.starts[at.batch * a.T + at.first + t] != 0) return -CUDART_INF_F;
    if (side == Side::kValues) return a.gv[offset(t, a.V) + channel];
    if (a.gate == Gate::kNone) return 0;
    if (a.gate == Gate::kFixed) return a.gk[at.head];
    return a.gate == Gate::kScalar ? a.gk[offset(t, 1)] : a.gk[offset(t, a.K) + channel];
  }

  /// Channels col0.. of x or y; zero outside; null is zero.
  template <class T>
  __device__ void read(const void* from, Side side, int64_t col0, float scale, float (&to)[kChunk][kRow]) const {
    const int c = threadIdx.x % kWidth;
    for (int t = threadIdx.x / kWidth; t < kChunk; t += kStep) {
      const bool inside = from != nullptr && t < at.n && col0 + c < dim(side);
      to[t][c] = inside ? scale * to_float(static_cast<const T*>(from)[offset(t, dim(side)) + col0 + c]) : 0.0f;
    }
  }

  /// The tree of a tile, and decays at their leaves: through = the token's own, after = 1. Begins and ends with a
  /// barrier.
  __device__ void make_tree(Side side, int64_t col0, Tree& tree, Tile& tile) const {
    const int c = threadIdx.x % kWidth, row = threadIdx.x / kWidth;
    __syncthreads();
    for (int t = row; t < kChunk; t += kStep) {
      tree.node[t][c] = gate(side, t, col0 + c);
      tree.forget[t][c] = isinf(tree.node[t][c]);
    }
    for (int m = 1; m < kChunk; m *= 2) {
      __syncthreads();
      const float* from = tree.level(m);
      float* to = tree.level(2 * m);
      for (int b = row; b < kChunk / (2 * m); b += kStep) {
        to[b * kRow + c] = from[2 * b * kRow + c] + from[(2 * b + 1) * kRow + c];
      }
    }
    __syncthreads();
    for (int i = row; i < 2 * kChunk - 1; i += kStep) tree.node[i][c] = expf(tree.node[i][c]);
    for (int t = row; t < kChunk; t += kStep) tile.through[t][c] = tree.node[t][c], tile.after[t][c] = 1;
    __syncthreads();
  }
  /// From blocks of m tokens to blocks of twice as many; ends with a barrier.
  __device__ void climb(int m, Tree& tree, Tile& tile) const {
    const int c = threadIdx.x % kWidth;
    const float* nodes = tree.level(m);
    for (int t = threadIdx.x / kWidth; t < kChunk; t += kStep) {
      const float sibling = nodes[(t / m ^ 1) * kRow + c];
      (t & m ? tile.through : tile.after)[t][c] *= sibling;
    }
    __syncthreads();
  }
  __device__ void climb_all(Tree& tree, Tile& tile) const {
    for (int m = 1; m < kChunk; m *= 2) climb(m, tree, tile);
  }
};

__device__ Stretch chunk_at(const Arguments& a, int64_t item) {
  const int64_t row = item / a.H;
  Stretch at{row / a.N, item % a.H, row % a.N, 0, 0};
  at.first = at.chunk * kChunk;
  at.n = static_cast<int>(min(static_cast<int64_t>(kChunk), a.T - at.first));
  return at;
}

// Carries.
// ---------------------------------------------------------------------------------------------------------------

struct CarryShared {
  Tile keys, values;
  Tree key_tree, value_tree;
};

/// A block has a 32 x 32 tile of the state; part: compose with a state instead of storing the chunk's own.
template <class T, bool kBackward>
__global__ void __launch_bounds__(kThreads) carry_kernel(Arguments a, Part part) {
  extern __shared__ __align__(16) unsigned char memory[];
  CarryShared& s = *reinterpret_cast<CarryShared*>(memory);
  const int64_t rows = (a.K + kWidth - 1) / kWidth, cols = (a.V + kWidth - 1) / kWidth;
  const int64_t item = blockIdx.x / (rows * cols), row0 = blockIdx.x / cols % rows * kWidth,
                col0 = blockIdx.x % cols * kWidth;
  const bool compose = part.to != nullptr;
  const Stretch at =
      compose ? Stretch{item / a.H, item % a.H, 0, part.first, static_cast<int>(part.n)} : chunk_at(a, item);
  const Reader reader{a, at};
  reader.read<T>(kBackward ? a.q : a.k, Side::kKeys, row0, kBackward ? a.scale : 1.0f, s.keys.y);
  reader.read<T>(kBackward ? a.dout : a.v, Side::kValues, col0, 1, s.values.y);
  reader.make_tree(Side::kKeys, row0, s.key_tree, s.keys);
  reader.climb_all(s.key_tree, s.keys);
  reader.make_tree(Side::kValues, col0, s.value_tree, s.values);
  reader.climb_all(s.value_tree, s.values);
  const auto& key_decay = kBackward ? s.keys.through : s.keys.after;
  const auto& value_decay = kBackward ? s.values.through : s.values.after;
  const int64_t head = at.batch * a.H + at.head;
  for (int i = threadIdx.x; i < kWidth * kWidth; i += kThreads) {
    const int r = i / kWidth, c = i % kWidth;
    if (row0 + r >= a.K || col0 + c >= a.V) continue;
    float sum = 0;
    for (int t = 0; t < at.n; ++t) {
      sum = fmaf(s.keys.y[t][r] * key_decay[t][r], s.values.y[t][c] * value_decay[t][c], sum);
    }
    const int64_t place = (row0 + r) * a.V + col0 + c;
    if (compose) {
      const float both = s.key_tree.whole()[r] * s.value_tree.whole()[c];
      part.to[head * a.K * a.V + place] = fmaf(both, part.from[head * part.from_stride + place], sum);
    } else {
      const int64_t index = head * (a.N + 1) + at.chunk + (kBackward ? 0 : 1);
      (kBackward ? a.dstate : a.state)[index * a.K * a.V + place] = sum;
    }
  }
  if (kBackward || compose || threadIdx.x >= kWidth) return;
  const int64_t chunk = head * a.N + at.chunk, c = threadIdx.x;
  if (col0 == 0 && row0 + c < a.K) a.decay_k[chunk * a.K + row0 + c] = s.key_tree.whole()[c];
  if (a.decay_v != nullptr && row0 == 0 && col0 + c < a.V) {
    a.decay_v[chunk * a.V + col0 + c] = s.value_tree.whole()[c];
  }
}

// Passes.
// ----------------------------------------------------------------------------------------------------------------

struct PassShared {
  Tile own, other;
  Tree tree;
  float score[kChunk][kChunk + 1], own_score[kChunk];
  float h[kWidth][kRow], dh[kWidth][kRow];
  float anchor[kWidth], other_whole[kWidth], scalar[kChunk];
};
static_assert(sizeof(PassShared) < 160 * 1024, "fits a block of sm_80");

template <class T, Pass kPass>
struct General {
  static constexpr Side kOwn = kPass == Pass::kKeys ? Side::kKeys : Side::kValues;
  static constexpr Side kOther = kPass == Pass::kKeys ? Side::kValues : Side::kKeys;
  const Arguments& a;
  Reader reader;
  PassShared& s;
  int channel = threadIdx.x % kWidth, row = threadIdx.x / kWidth;
  float dx[kMine], dy[kMine], dx_state[kMine], dy_state[kMine];

  __device__ const void* queries(Side side) const { return side == Side::kKeys ? a.q : a.dout; }
  __device__ const void* keys(Side side) const { return side == Side::kKeys ? a.k : a.v; }
  __device__ void read_side(Side side, int64_t col0, Tile& tile) {
    __syncthreads();
    reader.read<T>(queries(side), side, col0, side == Side::kKeys ? a.scale : 1.0f, tile.x);
    reader.read<T>(keys(side), side, col0, 1, tile.y);
    reader.make_tree(side, col0, s.tree, tile);
  }

  /// score_ij = sum over the other side's channels of x_i y_j D_ij for i > j; own_score_t = x_t . y_t.
  __device__ void make_scores() {
    for (int i = threadIdx.x; i < kChunk * kChunk; i += kThreads) s.score[i / kChunk][i % kChunk] = 0;
    float own = 0;
    for (int64_t col0 = 0; col0 < reader.dim(kOther); col0 += kWidth) {
      read_side(kOther, col0, s.other);
      const int t = threadIdx.x;
      for (int c = 0; c < kWidth && t < kChunk; ++c) own = fmaf(s.other.x[t][c], s.other.y[t][c], own);
      for (int m = 1; m < kChunk; m *= 2) {
        for (int pair = threadIdx.x; pair < kChunk / 2 * m; pair += kThreads) {
          const int block = pair / (m * m) * 2 * m, i = block + m + pair / m % m, j = block + pair % m;
          float sum = s.score[i][j];
          for (int c = 0; c < kWidth; ++c) {
            sum = fmaf(s.other.x[i][c] * s.other.through[i][c], s.other.y[j][c] * s.other.after[j][c], sum);
          }
          s.score[i][j] = sum;
        }
        __syncthreads();
        reader.climb(m, s.tree, s.other);
      }
    }
    if (threadIdx.x < kChunk) s.own_score[threadIdx.x] = own;
  }

  __device__ void run() {
    make_scores();
    if (threadIdx.x < kChunk) s.scalar[threadIdx.x] = 0;
    for (int64_t col0 = 0; col0 < reader.dim(kOwn); col0 += kWidth) {
      meet_states(col0);
      meet_pairs(col0);
      finish(col0);
    }
    __syncthreads();
    const bool scalar = kPass == Pass::kKeys && a.gate == Gate::kScalar;
    if (scalar && threadIdx.x < reader.at.n) a.dgk[reader.offset(threadIdx.x, 1)] = s.scalar[threadIdx.x];
  }

  __device__ void meet_states(int64_t col0) {
    const Stretch& at = reader.at;
    const int64_t head = (at.batch * a.H + at.head) * (a.N + 1) + at.chunk;
    for (int n = 0; n < kMine; ++n) dx[n] = dy[n] = dx_state[n] = dy_state[n] = 0;
    float anchor = 0;
    for (int64_t other = 0; other < reader.dim(kOther); other += kWidth) {
      read_side(kOther, other, s.other);
      reader.climb_all(s.tree, s.other);
      for (int i = row; i < kWidth; i += kStep) {
        const int64_t r = (kOwn == Side::kKeys ? col0 : other) + i, c = (kOwn == Side::kKeys ? other : col0) + channel;
        const bool inside = r < a.K && c < a.V;
        s.h[i][channel] = inside ? a.state[head * a.K * a.V + r * a.V + c] : 0.0f;
        s.dh[i][channel] = inside && kPass != Pass::kOutput ? a.dstate[(head + 1) * a.K * a.V + r * a.V + c] : 0.0f;
      }
      __syncthreads();
      for (int c = 0; c < kWidth; ++c) {
        const float h = kOwn == Side::kKeys ? s.h[channel][c] : s.h[c][channel];
        const float dh = kOwn == Side::kKeys ? s.dh[channel][c] : s.dh[c][channel];
        anchor = fmaf(s.tree.whole()[c] * h, dh, anchor);
        for (int n = 0; n < kMine; ++n) {
          const int t = row + n * kStep;
          dx_state[n] = fmaf(s.other.x[t][c] * s.other.through[t][c], h, dx_state[n]);
          dy_state[n] = fmaf(s.other.y[t][c] * s.other.after[t][c], dh, dy_state[n]);
        }
      }
    }
    if (row == 0) s.anchor[channel] = anchor;
  }

  __device__ void meet_pairs(int64_t col0) {
    read_side(kOwn, col0, s.own);
    for (int m = 1; m < kChunk; m *= 2) {
      for (int n = 0; n < kMine; ++n) {
        const int t = row + n * kStep, sibling = (t / m ^ 1) * m;
        float sum = 0;
        if (t & m) {
          for (int j = sibling; j < sibling + m; ++j) {
            sum = fmaf(s.score[t][j], s.own.y[j][channel] * s.own.after[j][channel], sum);
          }
          dx[n] = fmaf(s.own.through[t][channel], sum, dx[n]);
        } else {
          for (int i = sibling; i < sibling + m; ++i) {
            sum = fmaf(s.score[i][t], s.own.x[i][channel] * s.own.through[i][channel], sum);
          }
          dy[n] = fmaf(s.own.after[t][channel], sum, dy[n]);
        }
      }
      __syncthreads();
      reader.climb(m, s.tree, s.own);
    }
    for (int n = 0; n < kMine; ++n) {
      const int t = row + n * kStep;
      dx[n] = fmaf(s.own.through[t][channel], dx_state[n], dx[n]);
      dy_state[n] *= s.own.after[t][channel];
    }
  }

  __device__ void finish(int64_t col0) {
    const bool gates = kPass == Pass::kKeys ? a.dgk != nullptr : kPass == Pass::kValues && a.dgv != nullptr;
    if (gates) write_gate_gradient(col0);
    const int64_t dim = reader.dim(kOwn);
    for (int n = 0; n < kMine; ++n) {
      const int t = row + n * kStep;
      if (t >= reader.at.n || col0 + channel >= dim) continue;
      const int64_t place = reader.offset(t, dim) + col0 + channel;
      const float x = s.own.x[t][channel], y = s.own.y[t][channel], own = s.own_score[t];
      const float query = dx[n] + own * y, key = dy[n] + dy_state[n] + own * x;
      if (kPass == Pass::kOutput) set(static_cast<T*>(a.o) + place, query);
      if (kPass == Pass::kKeys) set(static_cast<T*>(a.dq) + place, a.scale * query);
      if (kPass == Pass::kKeys) set(static_cast<T*>(a.dk) + place, key);
      if (kPass == Pass::kValues) set(static_cast<T*>(a.dv) + place, key);
    }
  }

  /// One thread a channel goes over the chunk, forward and back.
  __device__ void write_gate_gradient(int64_t col0) {
    __syncthreads();  // the other side's tile is free: it takes y * (dy from states), and the rest
    auto &from_state = s.other.x, &rest = s.other.y, &sums = s.other.through;
    for (int n = 0; n < kMine; ++n) {
      const int t = row + n * kStep;
      from_state[t][channel] = s.own.y[t][channel] * dy_state[n];
      rest[t][channel] = s.own.x[t][channel] * dx[n] - s.own.y[t][channel] * dy[n];
    }
    __syncthreads();
    if (row == 0) {
      float sum = s.tree.whole()[channel] * s.anchor[channel];
      for (int t = 0; t < kChunk; ++t) sums[t][channel] = sum, sum += from_state[t][channel];
      sum = 0;
      for (int t = kChunk - 1; t >= 0; --t) {
        sum += rest[t][channel];
        const bool forget = s.tree.forget[t][channel];
        sums[t][channel] = forget ? 0.0f : sums[t][channel] + sum;
        if (forget) sum = 0;
      }
    }
    __syncthreads();
    if (kPass == Pass::kKeys && a.gate == Gate::kScalar) {
      if (threadIdx.x >= kChunk) return;
      for (int c = 0; c < kWidth; ++c) s.scalar[threadIdx.x] += sums[threadIdx.x][c];
      return;
    }
    const int64_t dim = reader.dim(kOwn);
    float* to = kPass == Pass::kKeys ? a.dgk : a.dgv;
    for (int t = row; t < reader.at.n; t += kStep) {
      if (col0 + channel < dim) to[reader.offset(t, dim) + col0 + channel] = sums[t][channel];
    }
  }
};

template <class T, Pass kPass>
__global__ void __launch_bounds__(kThreads) general_pass_kernel(Arguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  General<T, kPass>{a, {a, chunk_at(a, blockIdx.x)}, *reinterpret_cast<PassShared*>(memory)}.run();
}

template <class T, bool kBackward>
cudaError_t launch_carry_of(const Arguments& a, const Part* part, cudaStream_t stream) {
  const auto kernel = carry_kernel<T, kBackward>;
  const int bytes = sizeof(CarryShared);
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const int64_t tiles = ((a.K + kWidth - 1) / kWidth) * ((a.V + kWidth - 1) / kWidth);
  const int64_t blocks = a.B * a.H * (part == nullptr ? a.N : 1) * tiles;
  if (error != cudaSuccess || blocks == 0) return error;
  kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(a, part == nullptr ? Part{} : *part);
  return cudaGetLastError();
}

template <class T, Pass kPass>
cudaError_t launch_pass_of(const Arguments& a, cudaStream_t stream) {
  const auto kernel = general_pass_kernel<T, kPass>;
  const int bytes = sizeof(PassShared);
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const int64_t blocks = a.B * a.H * a.N;
  if (error != cudaSuccess || blocks == 0) return error;
  kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(a);
  return cudaGetLastError();
}

template <class T>
cudaError_t launch_pass_by_kind(const Arguments& a, Pass pass, cudaStream_t stream) {
  if (pass == Pass::kOutput) return launch_pass_of<T, Pass::kOutput>(a, stream);
  if (pass == Pass::kKeys) return launch_pass_of<T, Pass::kKeys>(a, stream);
  return launch_pass_of<T, Pass::kValues>(a, stream);
}

}  // namespace

cudaError_t launch_general_carry(const Arguments& a, bool bfloat16, bool backward, const Part* part,
                                 cudaStream_t stream) {
  using Bf16 = __nv_bfloat16;
  if (bfloat16) {
    return backward ? launch_carry_of<Bf16, true>(a, part, stream) : launch_carry_of<Bf16, false>(a, part, stream);
  }
  return backward ? launch_carry_of<float, true>(a, part, stream) : launch_carry_of<float, false>(a, part, stream);
}

cudaError_t launch_general_pass(const Arguments& a, bool bfloat16, Pass pass, cudaStream_t stream) {
  return bfloat16 ? launch_pass_by_kind<__nv_bfloat16>(a, pass, stream) : launch_pass_by_kind<float>(a, pass, stream);
}

}  // namespace baton::cuda::attention
