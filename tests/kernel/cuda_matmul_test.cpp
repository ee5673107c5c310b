// Matrix products by cuBLASLt against the CPU's in float64.
#include "kernels/matmul.h"
#include "tests/kernel/cuda_test.h"

namespace baton {
namespace {

struct Sizes {
  int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {1, 1, 1}, {64, 64, 64}, {33, 17, 65}, {257, 128, 1000}};
constexpr Trans kTrans[] = {Trans::kNo, Trans::kYes};
constexpr std::array<DType, 2> kOperandAndResult[] = {{kF32, kF32}, {kBF16, kF32}, {kBF16, kBF16}};

Shape stored(Trans trans, int64_t rows, int64_t columns) {
  return trans == Trans::kYes ? Shape{columns, rows} : Shape{rows, columns};
}

double tolerance(DType dtype, DType result) {
  return dtype == kBF16 ? tensor_core_tolerance(result) : cuda_tolerance(result);
}

TEST(CudaMatmul, EveryLayoutAndDtype) {
  for (const auto& [m, n, k] : kSizes)
    for (const auto& [dtype, result] : kOperandAndResult)
      for (Trans trans_a : kTrans)
        for (Trans trans_b : kTrans)
          for (double beta : {0.0, 1.0}) {
            const Operand a = random_operand(stored(trans_a, m, k), dtype, 1);
            const Operand b = random_operand(stored(trans_b, k, n), dtype, 2);
            const Operand c = beta == 0 ? nan_operand({m, n}, result) : random_operand({m, n}, result, 3);
            matmul(a.host, trans_a, b.host, trans_b, c.host, beta, Stream{});
            matmul(a.device, trans_a, b.device, trans_b, c.device, beta, gpu_stream());
            expect_close(c,
                         fmt::format("{} x {} x {} {} to {}, transposed {}{}, beta {}", m, n, k, to_string(dtype),
                                     to_string(result), static_cast<int>(trans_a), static_cast<int>(trans_b), beta),
                         tolerance(dtype, result));
          }
}

/// Rows from an odd place of an odd matrix on: aligned to their dtype and no more.
TEST(CudaMatmul, Unaligned) {
  const auto below = [](const Tensor& x) { return x.rows(1, x.dim(0) - 1); };
  for (DType dtype : gpu_dtypes()) {
    const Operand a = random_operand({34, 65}, dtype, 1), b = random_operand({18, 65}, dtype, 2);
    const Operand c = nan_operand({34, 17}, dtype);
    matmul(below(a.host), Trans::kNo, below(b.host), Trans::kYes, below(c.host), 0, Stream{});
    matmul(below(a.device), Trans::kNo, below(b.device), Trans::kYes, below(c.device), 0, gpu_stream());
    const OwnedTensor got = converted(to_host(below(c.device)), kF64);
    EXPECT_LT(relative_rms(got, to_doubles(below(c.host))), cuda_tolerance(dtype));
  }
}

/// Sums so long that an algorithm may share them out.
TEST(CudaMatmul, LongSumsRepeat) {
  for (const auto& [dtype, result] : kOperandAndResult) {
    const Operand a = random_operand({40000, 64}, dtype, 1), b = random_operand({40000, 96}, dtype, 2);
    const Operand c = random_operand({64, 96}, result, 3);
    expect_repeats(
        [&, result = result] {
          std::vector<OwnedTensor> out;
          out.push_back(OwnedTensor({64, 96}, result, kGpu));
          linear_dw(a.device, b.device, out[0], gpu_stream());
          return out;
        },
        "dw");
    linear_dw(a.host, b.host, c.host, Stream{});
    linear_dw(a.device, b.device, c.device, gpu_stream());
    expect_close(c, fmt::format("{} to {}", to_string(dtype), to_string(result)), tolerance(dtype, result));
  }
}

TEST(CudaMatmul, NoAllocationAfterTheFirst) {
  const Operand a = random_operand({64, 64}, kBF16, 1), c = nan_operand({64, 64}, kF32);
  matmul(a.device, Trans::kNo, a.device, Trans::kNo, c.device, 0, gpu_stream());
  const int64_t before = cuda::num_allocations();
  for (Trans trans : kTrans) matmul(a.device, trans, a.device, Trans::kNo, c.device, 1, gpu_stream());
  EXPECT_EQ(cuda::num_allocations(), before);
}

TEST(CudaMatmulErrors, DtypesAndShapes) {
  const OwnedTensor single({4, 4}, kF32, kGpu), half({4, 4}, kBF16, kGpu), host({4, 4}, kF32),
      other({5, 4}, kF32, kGpu);
  EXPECT_THROW(matmul(single, Trans::kNo, half, Trans::kNo, single, 0, gpu_stream()), Error);
  EXPECT_THROW(matmul(single, Trans::kNo, single, Trans::kNo, half, 0, gpu_stream()), Error);
  EXPECT_THROW(matmul(single, Trans::kNo, host, Trans::kNo, single, 0, gpu_stream()), Error);
  EXPECT_THROW(matmul(single, Trans::kNo, other, Trans::kNo, single, 0, gpu_stream()), Error);
}

}  // namespace
}  // namespace baton
