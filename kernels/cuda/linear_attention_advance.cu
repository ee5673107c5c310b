// Composition of the chunks' carries, element by element of the state:
//   forward  state_0 = h0,  state_{c+1} = decay_c * state_c + S_c      backward  dstate_N = dht,  dstate_c = decay_c *
//   dstate_{c+1} + dS_c
// One thread walks all chunks of kVec neighbouring elements in order, so the bits do not depend on how chunks are
// spread over ranks. Loads of kAhead chunks are under way before the first is used. No shared memory.
#include "kernels/cuda/linear_attention_arguments.h"

namespace baton::cuda::attention {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 4;

template <int kVec>
struct alignas(4 * kVec) Numbers {
  float x[kVec];
};

template <bool kBackward, int kVec>
__global__ void __launch_bounds__(kThreads, 3)
    advance_kernel(Arguments a, int64_t count, float* states, const float* __restrict__ first,
                   float* __restrict__ last) {
  using Vec = Numbers<kVec>;
  const int64_t size = a.K * a.V, per_state = size / kVec;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= a.B * a.H * per_state) return;
  const int64_t head = index / per_state, at = index % per_state * kVec, row = at / a.V, col = at % a.V;
  float* state = states + head * (a.N + 1) * size + at;
  const float* decay_k = a.decay_k + head * a.N * a.K + row;
  const float* decay_v = a.decay_v == nullptr ? nullptr : a.decay_v + head * a.N * a.V + col;
  Vec h{};
  if (first != nullptr) h = *reinterpret_cast<const Vec*>(first + head * size + at);
  *reinterpret_cast<Vec*>(state + (kBackward ? a.N * size : 0)) = h;
  for (int64_t begin = 0; begin < count; begin += kAhead) {
    Vec own[kAhead], both[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= count) break;
      const int64_t chunk = kBackward ? a.N - 1 - begin - i : begin + i;
      own[i] = *reinterpret_cast<const Vec*>(state + (kBackward ? chunk : chunk + 1) * size);
      const float decay = decay_k[chunk * a.K];
#pragma unroll
      for (int c = 0; c < kVec; ++c) both[i].x[c] = decay_v == nullptr ? decay : decay * decay_v[chunk * a.V + c];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= count) break;
      const int64_t chunk = kBackward ? a.N - 1 - begin - i : begin + i;
#pragma unroll
      for (int c = 0; c < kVec; ++c) h.x[c] = fmaf(both[i].x[c], h.x[c], own[i].x[c]);
      *reinterpret_cast<Vec*>(state + (kBackward ? chunk : chunk + 1) * size) = h;
    }
  }
  if (last != nullptr) *reinterpret_cast<Vec*>(last + head * size + at) = h;
}

template <bool kBackward, int kVec>
cudaError_t launch(const Arguments& a, int64_t count, const float* first, float* last, cudaStream_t stream) {
  const int64_t threads = a.B * a.H * a.K * a.V / kVec;
  if (threads == 0) return cudaSuccess;
  advance_kernel<kBackward, kVec><<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      a, count, kBackward ? a.dstate : a.state, first, last);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_advance(const Arguments& a, bool backward, int64_t count, const float* first, float* last,
                           cudaStream_t stream) {
  const uint64_t bits = reinterpret_cast<uint64_t>(first) | reinterpret_cast<uint64_t>(last);
  if (a.V % 4 == 0 && bits % 16 == 0) {
    return backward ? launch<true, 4>(a, count, first, last, stream) : launch<false, 4>(a, count, first, last, stream);
  }
  return backward ? launch<true, 1>(a, count, first, last, stream) : launch<false, 1>(a, count, first, last, stream);
}

}  // namespace baton::cuda::attention
