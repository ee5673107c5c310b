// Matrix products by cuBLASLt, which is column-major: a row-major matrix is there its transpose, so it is asked for
// c^T [N, M] = op(b)^T [N, K] op(a)^T [K, M]. Operands of one dtype, bfloat16 or float32; c that or float32. Products
// are summed in float32, without TF32; algorithms are asked for once a shape and cannot change between calls, and those
// that sum parts do so in float32 in the workspace, in a fixed order.
#include "kernels/matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/operand.h"

#define CUBLAS_CHECK(call)                                                                                      \
  do {                                                                                                          \
    const cublasStatus_t cublas_status = (call);                                                                \
    CHECK(cublas_status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} in {}", cublasLtGetStatusString(cublas_status), \
          #call);                                                                                               \
  } while (false)

namespace baton::cuda {
namespace {

cudaDataType_t type_of(const Tensor& x) { return x.dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F; }

/// What an algorithm is chosen by: device, sizes, transpositions, dtypes, alignments of b, a and c.
using Key = std::tuple<int, int64_t, int64_t, int64_t, Trans, Trans, DType, DType, uint32_t, uint32_t, uint32_t>;

uint32_t alignment_of(const Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.data);
  return static_cast<uint32_t>(std::min<uintptr_t>(256, address & (~address + 1)));
}

/// Owns a descriptor made by CREATE and destroyed by DESTROY.
template <class Handle, auto kDestroy>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  ~Owned() { static_cast<void>(kDestroy(handle)); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
};
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// One call's descriptors, in cuBLASLt's terms: b is its A, a its B.
struct Problem {
  Operation operation;
  Layout b, a, c;

  Problem(const Tensor& ta, Trans trans_a, const Tensor& tb, Trans trans_b, const Tensor& tc) {
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set_trans(CUBLASLT_MATMUL_DESC_TRANSA, trans_b);
    set_trans(CUBLASLT_MATMUL_DESC_TRANSB, trans_a);
    create(b, tb);
    create(a, ta);
    create(c, tc);
  }

 private:
  void set_trans(cublasLtMatmulDescAttributes_t attribute, Trans trans) {
    const cublasOperation_t value = trans == Trans::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation.handle, attribute, &value, sizeof(value)));
  }
  static void create(Layout& layout, const Tensor& x) {
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout.handle, type_of(x), static_cast<uint64_t>(x.dim(1)),
                                            static_cast<uint64_t>(x.dim(0)), x.dim(1)));
  }
};

class Library {
 public:
  static Library& instance() {
    static Library library;
    return library;
  }

  /// The device's handle; it must be the thread's current device.
  cublasLtHandle_t handle(int device) {
    const std::lock_guard lock(mutex_);
    cublasLtHandle_t& handle = handles_[device];
    if (handle == nullptr) CUBLAS_CHECK(cublasLtCreate(&handle));
    return handle;
  }

  cublasLtMatmulAlgo_t algorithm(const Key& key, cublasLtHandle_t handle, const Problem& problem) {
    const std::lock_guard lock(mutex_);
    const auto known = algorithms_.find(key);
    if (known != algorithms_.end()) return known->second;
    return algorithms_.emplace(key, choose(key, handle, problem)).first->second;
  }

 private:
  static cublasLtMatmulAlgo_t choose(const Key& key, cublasLtHandle_t handle, const Problem& problem) {
    Preference preference;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference.handle));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::get<8>(key));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::get<9>(key));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::get<10>(key));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::get<10>(key));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, problem.operation.handle, problem.b.handle, problem.a.handle,
                                       problem.c.handle, problem.c.handle, preference.handle, 1, &result, &found);
    CHECK(status == CUBLAS_STATUS_SUCCESS && found > 0, "cuBLASLt has no algorithm for a product of {} x {} x {}: {}",
          std::get<1>(key), std::get<2>(key), std::get<3>(key), cublasLtGetStatusString(status));
    return result.algo;
  }

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace

void matmul(const Tensor& a, Trans trans_a, const Tensor& b, Trans trans_b, const Tensor& c, double beta,
            const Stream& stream) {
  CHECK(a.shape.rank() == 2 && b.shape.rank() == 2 && c.shape.rank() == 2,
        "matmul takes matrices, got a {}, b {}, c {}", a.shape.str(), b.shape.str(), c.shape.str());
  CHECK(beta == 0.0 || beta == 1.0, "matmul takes beta 0 or 1, got {}", beta);
  const int64_t m = c.dim(0), n = c.dim(1), k = a.dim(trans_a == Trans::kYes ? 0 : 1);
  check_operand(a, "a", trans_a == Trans::kYes ? Shape{k, m} : Shape{m, k}, stream);
  check_operand(b, "b", trans_b == Trans::kYes ? Shape{n, k} : Shape{k, n}, a.dtype, stream);
  check_operand(c, "c", c.shape, c.dtype == DType::kBFloat16 ? a.dtype : DType::kFloat32, stream);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (beta == 0.0) set_zero(c.data, c.bytes(), stream);
    return;
  }
  const int device = stream.device.index;
  const Problem problem(a, trans_a, b, trans_b, c);
  const Key key{device, m, n, k, trans_a, trans_b, a.dtype, c.dtype, alignment_of(b), alignment_of(a), alignment_of(c)};
  Library& library = Library::instance();
  const cublasLtHandle_t handle = library.handle(device);
  const cublasLtMatmulAlgo_t algorithm = library.algorithm(key, handle, problem);
  const float one = 1.0F, factor = static_cast<float>(beta);
  CUBLAS_CHECK(cublasLtMatmul(handle, problem.operation.handle, &one, b.data, problem.b.handle, a.data,
                              problem.a.handle, &factor, c.data, problem.c.handle, c.data, problem.c.handle, &algorithm,
                              workspace(stream), static_cast<size_t>(kWorkspaceBytes), handle_of(stream)));
}

}  // namespace baton::cuda
