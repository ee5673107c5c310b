// Launches of walks: linear_attention_walk.cuh, linear_attention_shared.cuh.
#pragma once

#include "kernels/cuda/linear_attention_shared.cuh"

namespace baton::cuda::attention {

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
__global__ void __launch_bounds__((WalkTraits<kKind, kChannels, kOwnTiles, kTiles>::kNumThreads +
                                   (shares<kKind, kChannels, kOwnTiles, kTiles> ? kCarriers : 0)),
                                  (WalkTraits<kKind, kChannels, kOwnTiles, kTiles>::kBlocks))
    walk_kernel(Arguments a, Walk w, const __grid_constant__ WalkMaps maps) {
  extern __shared__ __align__(kTileAlignment) unsigned char memory[];
  if constexpr (shares<kKind, kChannels, kOwnTiles, kTiles>) {
    SharedBlock<kKind, kOwnTiles, kTiles>(a, w, memory).run();
  } else {
    WalkBlock<kKind, kChannels, kOwnTiles, kTiles> walk(a, w, memory);
    walk.maps = &maps;
    walk.run();
  }
}

template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
cudaError_t launch_walk_of(const Arguments& a, const Walk& w, cudaStream_t stream) {
  using Traits = WalkTraits<kKind, kChannels, kOwnTiles, kTiles>;
  const auto kernel = walk_kernel<kKind, kChannels, kOwnTiles, kTiles>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  const int64_t blocks = a.batches * a.H * w.num_walks * (w.own_dim / Traits::kOwn);
  if (error != cudaSuccess || blocks == 0) return error;
  WalkMaps maps{};
  if (!kChannels && a.warpgroups) error = make_walk_maps(a, w, maps);
  if (error != cudaSuccess) return error;
  const bool shared = Traits::kShared && w.cluster > 0;
  cudaLaunchAttribute cluster{cudaLaunchAttributeClusterDimension, {}, {}};
  cluster.val.clusterDim = {static_cast<unsigned>(w.cluster), 1, 1};
  const cudaLaunchConfig_t launch{static_cast<unsigned>(blocks),
                                  static_cast<unsigned>(Traits::kNumThreads + (shared ? kCarriers : 0)),
                                  Traits::kSharedBytes,
                                  stream,
                                  &cluster,
                                  shared ? 1u : 0u};
  return cudaLaunchKernelEx(&launch, kernel, a, w, maps);
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
