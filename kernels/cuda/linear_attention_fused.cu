// Launches of linear_attention_fused.cuh.
#include "kernels/cuda/linear_attention_fused.cuh"

namespace baton::cuda::attention {
namespace {

template <WalkKind kKind, int kOwnTiles, int kTiles>
__global__ void __launch_bounds__((FusedTraits<kKind, kOwnTiles, kTiles>::kThreadsOfBlock), 1)
    fused_kernel(Arguments a, Walk w, const __grid_constant__ WalkMaps maps) {
  extern __shared__ __align__(kTileAlignment) unsigned char memory[];
  if constexpr (kWarpgroups) {
    FusedBlock<kKind, kOwnTiles, kTiles> walk(a, w, memory);
    walk.maps = &maps;
    walk.run();
  } else {
    __trap();  // lest it be silent that there is no such code
  }
}

template <WalkKind kKind, int kOwnTiles, int kTiles>
cudaError_t launch(const Arguments& a, const Walk& w, cudaStream_t stream) {
  using Traits = FusedTraits<kKind, kOwnTiles, kTiles>;
  const auto kernel = fused_kernel<kKind, kOwnTiles, kTiles>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  const int64_t blocks = a.batches * a.H * w.num_walks * (w.own_dim / Traits::kOwn);
  if (error != cudaSuccess || blocks == 0) return error;
  WalkMaps maps;
  error = make_walk_maps(a, w, maps);
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(blocks), Traits::kThreadsOfBlock, Traits::kSharedBytes, stream>>>(a, w, maps);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_fused_walk(const Arguments& a, const Walk& w, cudaStream_t stream) {
  if (w.read == nullptr) return launch<WalkKind::kFusedStates, 2, 2>(a, w, stream);
  return w.reversed ? launch<WalkKind::kFusedReversed, 2, 2>(a, w, stream)
                    : launch<WalkKind::kFusedForward, 2, 2>(a, w, stream);
}

}  // namespace baton::cuda::attention
