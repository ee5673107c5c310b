// Embedding and LRPE against plain loops, long double angles and central differences.
#include "kernels/embedding.h"

#include "tests/kernel/op_test.h"

namespace baton {
namespace {

template <class T>
class Embedding : public ::testing::Test {};
TYPED_TEST_SUITE(Embedding, FloatTypes);

OwnedTensor tokens_of(int64_t N, int64_t vocab) {
  OwnedTensor tokens({N}, DType::kInt32);
  for (int64_t i = 0; i < N; ++i) tokens.tensor.as<int32_t>()[i] = static_cast<int32_t>(random_bits(3, 1, i) % vocab);
  return tokens;
}

TYPED_TEST(Embedding, ForwardAndBackward) {
  using T = TypeParam;
  for (const auto& [N, D] : std::vector<std::array<int64_t, 2>>{{0, 4}, {1, 1}, {37, 33}, {200, 130}}) {
    constexpr int64_t kVocab = 11;
    const auto tokens = tokens_of(N, kVocab);
    const auto w = random_tensor<T>({kVocab, D}, 1), y = nan_tensor<T>({N, D});
    const auto dy = random_tensor<T>({N, D}, 2), dw = random_tensor<T>({kVocab, D}, 3);
    std::vector<double> expected(N * D), gradient = to_doubles(dw);
    for (int64_t i = 0; i < N * D; ++i) {
      const int64_t place = tokens.tensor.template as<int32_t>()[i / D] * D + i % D;
      expected[i] = 1.7 * to_doubles(w)[place];
      gradient[place] += 1.7 * to_doubles(dy)[i];
    }
    embedding_forward(tokens, w, 1.7, y, Stream{});
    EXPECT_LT(relative_rms(y, expected), kTolerance<T>);
    embedding_backward(tokens, dy, 1.7, dw, Stream{});
    EXPECT_LT(relative_rms(dw, gradient), kTolerance<T>);
  }
}

TEST(EmbeddingErrors, TokenOutsideTheVocabulary) {
  const OwnedTensor w({5, 4}, DType::kFloat32), y({2, 4}, DType::kFloat32);
  for (int64_t bad : {-1, 5}) {
    const auto tokens = int_tensor<int32_t>({2}, {0, bad});
    EXPECT_THROW(embedding_forward(tokens, w, 1, y, Stream{}), Error);
    EXPECT_THROW(embedding_backward(tokens, y, 1, w, Stream{}), Error);
  }
}

/// theta as a model starts with: 10000^(-2i/K), rising with the head.
template <class T>
OwnedTensor theta_of(int64_t H, int64_t K) {
  OwnedTensor theta({H, 1, K}, dtype_of<T>());
  for (int64_t i = 0; i < H * K; ++i)
    theta.tensor.as<T>()[i] =
        static_cast<T>(static_cast<float>(std::pow(10000.0, -static_cast<double>(i % K) / K) * (1 + 0.1 * (i / K))));
  return theta;
}

/// cos and sin of theta * position, in long double.
std::array<double, 2> plain_rotation(double theta, int64_t position) {
  const long double angle = static_cast<long double>(theta) * static_cast<long double>(position);
  return {static_cast<double>(std::cos(angle)), static_cast<double>(std::sin(angle))};
}

TYPED_TEST(Embedding, LrpeAtFarPositions) {
  using T = TypeParam;
  const int64_t B = 2, tokens = 6, H = 3, K = 19;
  const std::vector<int64_t> far{0,         1, 4'000'000, 1'000'000'007,    999'999'999'989, 77, 0, 0,
                                 4'000'000, 5, 12,        1'000'000'000'000};
  const auto positions = int_tensor<int64_t>({B, tokens}, far);
  const auto theta = theta_of<T>(H, K), y = nan_tensor<T>({B, tokens, H, 2 * K});
  const OwnedTensor x({B, tokens, H, K}, dtype_of<T>());
  std::fill_n(x.tensor.template as<T>(), x.tensor.numel(), T{1});
  lrpe_forward(x, theta, positions, y, Stream{});
  const double tolerance = std::is_same_v<T, float> ? 1e-6 : 1e-12;
  const auto got = to_doubles(y), angles = to_doubles(theta);
  for (int64_t row = 0; row < B * tokens; ++row)
    for (int64_t i = 0; i < H * K; ++i) {
      const auto [c, s] = plain_rotation(angles[i], far[row]);
      const int64_t place = (row * H + i / K) * 2 * K + i % K;
      EXPECT_NEAR(got[place], c, tolerance) << "position " << far[row];
      EXPECT_NEAR(got[place + K], s, tolerance) << "position " << far[row];
    }
}

template <class T>
struct Lrpe {
  Lrpe(int64_t B, int64_t tokens, int64_t H, int64_t K, int64_t offset)
      : x(random_tensor<T>({B, tokens, H, K}, 1)),
        theta(theta_of<T>(H, K)),
        dy(random_tensor<T>({B, tokens, H, 2 * K}, 2)),
        positions({B, tokens}, DType::kInt64) {
    // Row 1 starts another document in the middle.
    for (int64_t i = 0; i < B * tokens; ++i)
      positions.tensor.template as<int64_t>()[i] = i < tokens || i % tokens < tokens / 2 ? offset + i % tokens : i % 3;
  }
  std::vector<OwnedTensor> gradients(double start) const {
    std::vector<OwnedTensor> out;
    out.push_back(nan_tensor<T>(x.tensor.shape));
    out.push_back(random_tensor<T>(theta.tensor.shape, 4, start));
    out.push_back(nan_tensor<T>(dy.tensor.shape));
    lrpe_backward(x, theta, positions, dy, out[0], out[1], Stream{});
    lrpe_forward(x, theta, positions, out[2], Stream{});
    return out;
  }
  OwnedTensor x, theta, dy, positions;
};

TEST(LrpeGradient, AgainstDifferences) {
  const Lrpe<double> c(2, 9, 2, 3, 0);
  const auto gradients = c.gradients(0);
  const auto loss = [&] {
    const auto y = nan_tensor<double>(c.dy.tensor.shape);
    lrpe_forward(c.x, c.theta, c.positions, y, Stream{});
    return dot(y, c.dy);
  };
  EXPECT_LT(relative_rms(gradients[0], numeric_gradient(c.x, loss)), kDifferenceTolerance);
  EXPECT_LT(relative_rms(gradients[1], numeric_gradient(c.theta, loss)), kDifferenceTolerance);
}

TEST(LrpeGradient, Float32AgainstFloat64) {
  for (int64_t tokens : {0, 1, 131})
    for (int64_t offset : {int64_t{0}, int64_t{4'000'000}}) {
      const auto single = Lrpe<float>(2, tokens, 3, 17, offset).gradients(1);
      const auto wide = Lrpe<double>(2, tokens, 3, 17, offset).gradients(1);
      for (size_t i = 0; i < wide.size(); ++i) EXPECT_LT(relative_rms(single[i], to_doubles(wide[i])), 2e-6) << i;
    }
}

TEST(LrpeGradient, ThetaAccumulates) {
  const Lrpe<double> c(1, 70, 2, 3, 5);
  const auto fresh = c.gradients(0), added = c.gradients(1);
  auto expected = to_doubles(random_tensor<double>({2, 1, 3}, 4));
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += to_doubles(fresh[1])[i];
  EXPECT_LT(relative_rms(added[1], expected), 1e-14);
}

TYPED_TEST(Embedding, SameBitsOnAnyThreads) {
  using T = TypeParam;
  expect_same_on_any_threads([] { return Lrpe<T>(3, 300, 2, 19, 1000).gradients(1); });
  expect_same_on_any_threads([] {
    std::vector<OwnedTensor> out;
    out.push_back(random_tensor<T>({11, 333}, 3));
    embedding_backward(tokens_of(500, 11), random_tensor<T>({500, 333}, 2), 0.7, out[0], Stream{});
    return out;
  });
}

TEST(LrpeErrors, Shapes) {
  const OwnedTensor x({1, 2, 3, 4}, DType::kFloat32), theta({3, 1, 4}, DType::kFloat32),
      y({1, 2, 3, 8}, DType::kFloat32);
  const OwnedTensor positions({1, 2}, DType::kInt64), narrow({1, 2}, DType::kInt32);
  EXPECT_THROW(lrpe_forward(x, theta, narrow, y, Stream{}), Error);
  EXPECT_THROW(lrpe_forward(x, theta, positions, x, Stream{}), Error);
  EXPECT_THROW(lrpe_backward(x, theta, positions, y, y, theta, Stream{}), Error);
}

}  // namespace
}  // namespace baton
