// Cross-entropy against a plain loop in double and central differences.
#include "kernels/loss.h"

#include "tests/kernel/op_test.h"

namespace baton {
namespace {

template <class T>
class CrossEntropy : public ::testing::Test {};
TYPED_TEST_SUITE(CrossEntropy, FloatTypes);

OwnedTensor targets_of(int64_t N, int64_t vocab) {
  OwnedTensor targets({N}, DType::kInt32);
  for (int64_t i = 0; i < N; ++i)
    targets.tensor.as<int32_t>()[i] = i % 5 == 3 ? -1 : static_cast<int32_t>(random_bits(3, 1, i) % vocab);
  return targets;
}

struct Expected {
  std::vector<double> losses, dlogits;
};

Expected plain_loss(const Tensor& logits, const Tensor& targets, double scale) {
  const int64_t N = logits.dim(0), vocab = logits.dim(1);
  const auto x = to_doubles(logits);
  Expected out{std::vector<double>(N, 0.0), std::vector<double>(N * vocab, 0.0)};
  for (int64_t i = 0; i < N; ++i) {
    const int32_t target = targets.as<int32_t>()[i];
    if (target < 0) continue;
    const double largest = *std::max_element(x.begin() + i * vocab, x.begin() + (i + 1) * vocab);
    double sum = 0;
    for (int64_t j = 0; j < vocab; ++j) sum += std::exp(x[i * vocab + j] - largest);
    out.losses[i] = largest + std::log(sum) - x[i * vocab + target];
    for (int64_t j = 0; j < vocab; ++j)
      out.dlogits[i * vocab + j] = scale * (std::exp(x[i * vocab + j] - largest) / sum - (j == target ? 1.0 : 0.0));
  }
  return out;
}

TYPED_TEST(CrossEntropy, AgainstPlainLoops) {
  using T = TypeParam;
  for (const auto& [N, vocab] :
       std::vector<std::array<int64_t, 2>>{{0, 5}, {1, 1}, {5, 2}, {20, 61}, {9, 257}, {3, 131072}})
    for (double size : {1.0, 1e4}) {
      const auto logits = random_tensor<T>({N, vocab}, 1, size);
      const auto targets = targets_of(N, vocab);
      const auto losses = nan_tensor<double>({N}), only = nan_tensor<double>({N}), dlogits = nan_tensor<T>({N, vocab});
      const Expected expected = plain_loss(logits, targets, 0.25);
      cross_entropy(logits, targets, losses, 0.25, dlogits, Stream{});
      EXPECT_LT(relative_rms(losses, expected.losses), kTolerance<T>) << N << " x " << vocab;
      EXPECT_LT(relative_rms(dlogits, expected.dlogits), kTolerance<T>) << N << " x " << vocab;
      cross_entropy(logits, targets, only, 0.25, {}, Stream{});
      EXPECT_TRUE(same_bytes(only, losses)) << "without gradient";
      cross_entropy(logits, targets, only, 0.25, logits, Stream{});
      EXPECT_TRUE(same_bytes(only, losses) && same_bytes(logits, dlogits)) << "in place";
    }
}

TYPED_TEST(CrossEntropy, LargeEqualLogits) {
  using T = TypeParam;
  for (double value : {-1e4, 1e4}) {
    const OwnedTensor logits({1, 300}, dtype_of<T>());
    std::fill_n(logits.tensor.template as<T>(), 300, static_cast<T>(value));
    const auto losses = nan_tensor<double>({1});
    cross_entropy(logits, int_tensor<int32_t>({1}, {299}), losses, 1, {}, Stream{});
    EXPECT_NEAR(losses.tensor.as<double>()[0], std::log(300.0), 1e-11);
  }
}

TYPED_TEST(CrossEntropy, NotANumberStaysVisible) {
  using T = TypeParam;
  const auto logits = random_tensor<T>({2, 40}, 1), losses = random_tensor<double>({2}, 2);
  logits.tensor.template as<T>()[50] = std::numeric_limits<T>::quiet_NaN();
  cross_entropy(logits, int_tensor<int32_t>({2}, {1, 1}), losses, 1, {}, Stream{});
  EXPECT_TRUE(std::isfinite(losses.tensor.as<double>()[0]));
  EXPECT_TRUE(std::isnan(losses.tensor.as<double>()[1]));
}

TEST(CrossEntropyGradient, AgainstDifferences) {
  const int64_t N = 6, vocab = 7;
  const auto logits = random_tensor<double>({N, vocab}, 1, 2.0), dlogits = nan_tensor<double>({N, vocab});
  const auto targets = targets_of(N, vocab), losses = nan_tensor<double>({N});
  cross_entropy(logits, targets, losses, 0.5, dlogits, Stream{});
  const auto loss = [&] {
    cross_entropy(logits, targets, losses, 0.5, {}, Stream{});
    double sum = 0;
    for (double l : to_doubles(losses)) sum += 0.5 * l;
    return sum;
  };
  EXPECT_LT(relative_rms(dlogits, numeric_gradient(logits, loss)), kDifferenceTolerance);
}

TYPED_TEST(CrossEntropy, SameBitsOnAnyThreads) {
  using T = TypeParam;
  const auto logits = random_tensor<T>({61, 517}, 1, 3.0);
  const auto targets = targets_of(61, 517);
  expect_same_on_any_threads([&] {
    std::vector<OwnedTensor> out;
    out.push_back(nan_tensor<T>({61, 517}));
    out.push_back(nan_tensor<double>({61}));
    cross_entropy(logits, targets, out[1], 0.1, out[0], Stream{});
    return out;
  });
}

TEST(CrossEntropyErrors, TargetsAndShapes) {
  const OwnedTensor logits({2, 5}, DType::kFloat32), losses({2}, DType::kFloat64), single({2}, DType::kFloat32);
  for (int64_t bad : {-2, 5})
    EXPECT_THROW(cross_entropy(logits, int_tensor<int32_t>({2}, {0, bad}), losses, 1, {}, Stream{}), Error);
  EXPECT_THROW(cross_entropy(logits, int_tensor<int32_t>({2}, {0, 1}), single, 1, {}, Stream{}), Error);
  EXPECT_THROW(cross_entropy(logits, int_tensor<int32_t>({2}, {0, 1}), losses, 1, single, Stream{}), Error);
}

}  // namespace
}  // namespace baton
