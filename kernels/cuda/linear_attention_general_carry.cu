// Carries of chunks, and of parts of them, by plain float32 arithmetic: the equations of linear_attention_carry.cu with
// the tiles of linear_attention_plain.cuh.
#include "kernels/cuda/linear_attention_plain.cuh"

namespace baton::cuda::attention {
namespace {

using namespace plain;

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

}  // namespace

cudaError_t launch_general_carry(const Arguments& a, bool bfloat16, bool backward, const Part* part,
                                 cudaStream_t stream) {
  using Bf16 = __nv_bfloat16;
  if (bfloat16) {
    return backward ? launch_carry_of<Bf16, true>(a, part, stream) : launch_carry_of<Bf16, false>(a, part, stream);
  }
  return backward ? launch_carry_of<float, true>(a, part, stream) : launch_carry_of<float, false>(a, part, stream);
}

}  // namespace baton::cuda::attention
