#include "kernels/cuda/linear_attention_maps.h"

#include <array>

namespace baton::cuda::attention {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// Null where there is none.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr const char* kName = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(kName, &function, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(kName, &function, cudaEnableDefault, &result);
#endif
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
}

/// A tensor of bfloat16 or float32, dims and box from the innermost on; bfloat16 comes swizzled.
template <size_t kRank>
bool make(const void* data, bool bfloat16, const std::array<int64_t, kRank>& dims,
          const std::array<cuuint32_t, kRank>& box, CUtensorMap& map) {
  static const Encode encode = find_encode();
  std::array<cuuint64_t, kRank> sizes, strides;  // strides: bytes; of all but the innermost
  std::array<cuuint32_t, kRank> steps;
  steps.fill(1);
  cuuint64_t stride = bfloat16 ? sizeof(__nv_bfloat16) : sizeof(float);
  for (size_t i = 0; i < kRank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(dims[i]);
    strides[i] = stride *= sizes[i];
  }
  return encode != nullptr &&
         encode(&map, bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32, kRank,
                const_cast<void*>(data), sizes.data(), strides.data(), box.data(), steps.data(),
                CU_TENSOR_MAP_INTERLEAVE_NONE, bfloat16 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// [B, T, H, dim].
bool activation(const Arguments& a, const void* x, int64_t dim, CUtensorMap& map, bool bfloat16 = true) {
  return make<4>(x, bfloat16, {dim, a.H, a.T, a.B}, {64, 1, kChunk, 1}, map);
}
bool gates(const Arguments& a, CUtensorMap& map) { return activation(a, a.gk, a.K, map, /*bfloat16=*/false); }

}  // namespace

cudaError_t make_pass_maps(const Arguments& a, PassMaps& maps) {
  const auto states = [&](const void* x, CUtensorMap& map) {
    return make<2>(x, true, {a.K, a.batches * a.H * a.chunks * a.V}, {64, 64}, map);
  };
  const bool made = activation(a, a.q, a.K, maps.q) && activation(a, a.k, a.K, maps.k) &&
                    activation(a, a.v, a.V, maps.v) && activation(a, a.dout, a.V, maps.dout) && gates(a, maps.gates) &&
                    states(a.chunk_state, maps.state) && states(a.chunk_dstate, maps.dstate);
  return made ? cudaSuccess : cudaErrorNotSupported;
}

cudaError_t make_walk_maps(const Arguments& a, const Walk& w, WalkMaps& maps) {
  const int64_t other = w.own_is_keys ? a.V : a.K;
  const auto where_there = [&](const void* x, CUtensorMap& map) {
    return x == nullptr || activation(a, x, other, map);
  };
  const bool made = activation(a, w.own, w.own_dim, maps.own) && activation(a, w.update, other, maps.update) &&
                    where_there(w.read, maps.read) && where_there(w.dk_read, maps.dk_read) &&
                    (a.gate != Gate::kVector || gates(a, maps.gates));
  return made ? cudaSuccess : cudaErrorNotSupported;
}

}  // namespace baton::cuda::attention
