// Walks whose decays are one number a token: none, fixed, scalar.
#include "kernels/cuda/linear_attention_walk_launch.cuh"

namespace baton::cuda::attention {

cudaError_t launch_number_walk(const Arguments& a, const Walk& w, cudaStream_t stream) {
  if (w.read == nullptr) return launch_walk_by_size<WalkKind::kStates, false>(a, w, stream);
  if (w.dk_read != nullptr) {
    return a.K == 64 ? launch_walk_of<WalkKind::kGradients, false, 1, 1>(a, w, stream)
                     : launch_walk_of<WalkKind::kGradients, false, 2, 2>(a, w, stream);
  }
  return w.reversed ? launch_walk_by_size<WalkKind::kReversed, false>(a, w, stream)
                    : launch_walk_by_size<WalkKind::kForward, false>(a, w, stream);
}

}  // namespace baton::cuda::attention
