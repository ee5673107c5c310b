// Outputs and gradients by plain float32 arithmetic: the equations of linear_attention_pass.cuh with the tiles of
// linear_attention_plain.cuh.
#include "kernels/cuda/linear_attention_plain.cuh"

namespace baton::cuda::attention {
namespace {

using namespace plain;

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

cudaError_t launch_general_pass(const Arguments& a, bool bfloat16, Pass pass, cudaStream_t stream) {
  return bfloat16 ? launch_pass_by_kind<__nv_bfloat16>(a, pass, stream) : launch_pass_by_kind<float>(a, pass, stream);
}

}  // namespace baton::cuda::attention
