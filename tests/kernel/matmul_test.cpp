// matmul against a plain loop in double.
#include "kernels/matmul.h"

#include <cblas.h>

#include "tests/kernel/op_test.h"

namespace baton {
namespace {

constexpr Trans kBoth[] = {Trans::kNo, Trans::kYes};

template <class T>
class Matmul : public ::testing::Test {};
TYPED_TEST_SUITE(Matmul, FloatTypes);

std::vector<double> product(const Tensor& a, Trans ta, const Tensor& b, Trans tb, const Tensor& c, double beta) {
  const int64_t m = c.dim(0), n = c.dim(1), k = a.dim(ta == Trans::kYes ? 0 : 1);
  const auto x = to_doubles(a), y = to_doubles(b);
  std::vector<double> out = beta == 0 ? std::vector<double>(m * n, 0.0) : to_doubles(c);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        out[i * n + j] += x[ta == Trans::kYes ? l * m + i : i * k + l] * y[tb == Trans::kYes ? j * k + l : l * n + j];
  return out;
}

TYPED_TEST(Matmul, EveryTransposeAndSize) {
  using T = TypeParam;
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                   {1, 7, 3},
                                                                   {5, 1, 9},
                                                                   {17, 33, 65},
                                                                   {64, 64, 64},
                                                                   {130, 31, 257},
                                                                   {3, 5, 0},
                                                                   {0, 5, 3},
                                                                   {5, 0, 3}})
    for (Trans ta : kBoth)
      for (Trans tb : kBoth)
        for (double beta : {0.0, 1.0}) {
          const auto a = random_tensor<T>(ta == Trans::kYes ? Shape{k, m} : Shape{m, k}, 1);
          const auto b = random_tensor<T>(tb == Trans::kYes ? Shape{n, k} : Shape{k, n}, 2);
          const auto c = beta == 0 ? nan_tensor<T>({m, n}) : random_tensor<T>({m, n}, 3);
          const auto expected = product(a, ta, b, tb, c, beta);
          matmul(a, ta, b, tb, c, beta, Stream{});
          EXPECT_LT(relative_rms(c, expected), 2 * kTolerance<T>) << m << " " << n << " " << k << " beta " << beta;
        }
}

TYPED_TEST(Matmul, LinearLayerAndItsGradients) {
  using T = TypeParam;
  const auto x = random_tensor<T>({9, 6}, 1), w = random_tensor<T>({4, 6}, 2), dy = random_tensor<T>({9, 4}, 3);
  const auto y = nan_tensor<T>({9, 4}), dx = random_tensor<T>({9, 6}, 4), dw = random_tensor<T>({4, 6}, 5);
  linear_forward(x, w, y, Stream{});
  EXPECT_LT(relative_rms(y, product(x, Trans::kNo, w, Trans::kYes, y, 0)), kTolerance<T>);
  const auto dx_expected = product(dy, Trans::kNo, w, Trans::kNo, dx, 1);
  linear_dx(dy, w, dx, 1.0, Stream{});
  EXPECT_LT(relative_rms(dx, dx_expected), kTolerance<T>);
  const auto dw_expected = product(dy, Trans::kYes, x, Trans::kNo, dw, 1);
  linear_dw(dy, x, dw, Stream{});
  EXPECT_LT(relative_rms(dw, dw_expected), kTolerance<T>);
}

TYPED_TEST(Matmul, SameBitsOnAnyThreads) {
  using T = TypeParam;
  for (const auto& [m, n, k] :
       std::vector<std::array<int64_t, 3>>{{513, 256, 256}, {256, 129, 1025}, {700, 600, 128}, {128, 700, 1030}})
    for (Trans ta : kBoth)
      for (Trans tb : kBoth) {
        const auto a = random_tensor<T>(ta == Trans::kYes ? Shape{k, m} : Shape{m, k}, 1);
        const auto b = random_tensor<T>(tb == Trans::kYes ? Shape{n, k} : Shape{k, n}, 2);
        expect_same_on_any_threads([&, m = m, n = n] {
          std::vector<OwnedTensor> out;
          out.push_back(random_tensor<T>({m, n}, 3));
          matmul(a, ta, b, tb, out[0], 1.0, Stream{});
          return out;
        });
      }
}

TEST(MatmulThreads, LeavesTheCallersNumber) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  for (int64_t m : {4, 600}) {
    const auto a = random_tensor<float>({m, 8}, 1), c = nan_tensor<float>({m, m});
    matmul(a, Trans::kNo, a, Trans::kYes, c, 0, Stream{});
    EXPECT_EQ(omp_get_max_threads(), 3);
  }
  omp_set_num_threads(before);
}

TEST(MatmulCore, IsNotTheFallbackOnAVectorProcessor) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    EXPECT_STRNE(openblas_get_corename(), "Prescott");
  }
#endif
}

TEST(MatmulErrors, ShapesAndBeta) {
  const OwnedTensor a({2, 3}, DType::kFloat32), b({3, 4}, DType::kFloat32), c({2, 4}, DType::kFloat32);
  const OwnedTensor wide({3, 4}, DType::kFloat64);
  EXPECT_THROW(matmul(a, Trans::kYes, b, Trans::kNo, c, 0, Stream{}), Error);
  EXPECT_THROW(matmul(a, Trans::kNo, b, Trans::kYes, c, 0, Stream{}), Error);
  EXPECT_THROW(matmul(a, Trans::kNo, wide, Trans::kNo, c, 0, Stream{}), Error);
  EXPECT_THROW(matmul(a, Trans::kNo, b, Trans::kNo, c, 0.5, Stream{}), Error);
  // No memory is touched before the sizes are checked.
  const int64_t wide_columns = int64_t{1} << 31;
  const Tensor long_row{nullptr, {1, wide_columns}, DType::kFloat32, {}};
  EXPECT_THROW(matmul(a, Trans::kNo, {nullptr, {3, wide_columns}, DType::kFloat32, {}}, Trans::kNo,
                      {nullptr, {2, wide_columns}, DType::kFloat32, {}}, 0, Stream{}),
               Error);
  EXPECT_THROW(matmul(long_row, Trans::kNo, long_row, Trans::kYes, OwnedTensor({1, 1}, DType::kFloat32), 0, Stream{}),
               Error);
}

}  // namespace
}  // namespace baton
