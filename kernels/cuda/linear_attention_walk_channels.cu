// Walks whose decays have key channels: vector.
#include "kernels/cuda/linear_attention_walk_launch.cuh"

namespace baton::cuda::attention {

cudaError_t launch_channel_walk(const Arguments& a, const Walk& w, cudaStream_t stream) {
  if (w.read == nullptr) return launch_walk_by_size<WalkKind::kStates, true>(a, w, stream);
  return w.reversed ? launch_walk_by_size<WalkKind::kReversed, true>(a, w, stream)
                    : launch_walk_by_size<WalkKind::kForward, true>(a, w, stream);
}

}  // namespace baton::cuda::attention
