// Gradients of the keys' side: dq, dk and their gates' by the pass of linear_attention_pass.cuh, one instance for every
// way in which decays have channels.
#include "kernels/cuda/linear_attention_pass.cuh"

namespace baton::cuda::attention {

cudaError_t launch_keys(const Arguments& a, cudaStream_t stream) {
  if (a.gate == Gate::kBilinear) return launch_pass<Pass::kKeys, true, true>(a, stream);
  if (a.gate == Gate::kVector) return launch_pass<Pass::kKeys, true, false>(a, stream);
  return launch_pass<Pass::kKeys, false, false>(a, stream);
}

cudaError_t launch_span_keys(const Arguments& a, cudaStream_t stream) {
  if (a.gate == Gate::kVector) return launch_pass<Pass::kSpanKeys, true, false>(a, stream);
  return launch_pass<Pass::kSpanKeys, false, false>(a, stream);
}

bool keys_fit(const Arguments& a, int64_t shared_bytes) {
  if (a.gate == Gate::kBilinear) return PassTraits<Pass::kKeys, true, true>::fits(a, shared_bytes);
  if (a.gate == Gate::kVector) return PassTraits<Pass::kKeys, true, false>::fits(a, shared_bytes);
  return PassTraits<Pass::kKeys, false, false>::fits(a, shared_bytes);
}

}  // namespace baton::cuda::attention
