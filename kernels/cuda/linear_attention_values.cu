// Gradients of the values' side: dv and its gates' by the pass of linear_attention_pass.cuh, one instance for every way
// in which decays have channels.
#include "kernels/cuda/linear_attention_pass.cuh"

namespace baton::cuda::attention {

cudaError_t launch_values(const Arguments& a, cudaStream_t stream) {
  if (a.gate == Gate::kBilinear) return launch_pass<Pass::kValues, true, true>(a, stream);
  if (a.gate == Gate::kVector) return launch_pass<Pass::kValues, false, true>(a, stream);
  return launch_pass<Pass::kValues, false, false>(a, stream);
}

bool values_fit(const Arguments& a, int64_t shared_bytes) {
  if (a.gate == Gate::kBilinear) return PassTraits<Pass::kValues, true, true>::fits(a, shared_bytes);
  if (a.gate == Gate::kVector) return PassTraits<Pass::kValues, false, true>::fits(a, shared_bytes);
  return PassTraits<Pass::kValues, false, false>::fits(a, shared_bytes);
}

}  // namespace baton::cuda::attention
