// Row norms against plain loops in double and central differences.
#include "kernels/norm.h"

#include "tests/kernel/op_test.h"

namespace baton {
namespace {

constexpr NormKind kKinds[] = {NormKind::kRms, NormKind::kSimpleRms, NormKind::kLayer};
constexpr double kEps = 1e-5;

template <class T>
class Norm : public ::testing::Test {};
TYPED_TEST_SUITE(Norm, FloatTypes);

template <class T>
OwnedTensor vector_of(bool present, int64_t D, uint64_t stream) {
  return present ? random_tensor<T>({D}, stream) : OwnedTensor();
}

struct Expected {
  std::vector<double> y, stats;
};

Expected plain_norm(NormKind kind, const Tensor& x, const Tensor& w, const Tensor& b) {
  const int64_t N = x.dim(0), D = x.dim(1);
  const auto in = to_doubles(x);
  const auto weight = w.defined() ? to_doubles(w) : std::vector<double>(D, 1.0);
  const auto bias = b.defined() ? to_doubles(b) : std::vector<double>(D, 0.0);
  Expected out;
  for (int64_t i = 0; i < N; ++i) {
    double mean = 0, variance = 0;
    if (kind == NormKind::kLayer)
      for (int64_t j = 0; j < D; ++j) mean += in[i * D + j] / D;
    for (int64_t j = 0; j < D; ++j) variance += std::pow(in[i * D + j] - mean, 2) / D;
    const double rstd = 1 / std::sqrt(variance + kEps);
    out.stats.insert(out.stats.end(), {mean, rstd});
    for (int64_t j = 0; j < D; ++j) out.y.push_back((in[i * D + j] - mean) * rstd * weight[j] + bias[j]);
  }
  return out;
}

TYPED_TEST(Norm, Forward) {
  using T = TypeParam;
  for (NormKind kind : kKinds)
    for (const auto& [N, D] :
         std::vector<std::array<int64_t, 2>>{{0, 8}, {1, 1}, {1, 7}, {3, 64}, {130, 33}, {65, 256}}) {
      const bool layer = kind == NormKind::kLayer;
      const auto x = random_tensor<T>({N, D}, 1, 3.0);
      const auto w = vector_of<T>(kind != NormKind::kSimpleRms, D, 2), b = vector_of<T>(layer, D, 3);
      const auto y = nan_tensor<T>({N, D}), stats = nan_tensor<T>({N, 2});
      norm_forward(kind, x, w, b, kEps, y, stats, Stream{});
      const Expected expected = plain_norm(kind, x, w, b);
      EXPECT_LT(relative_rms(y, expected.y), kTolerance<T>) << to_string(kind) << " " << N << " x " << D;
      EXPECT_LT(relative_rms(stats, expected.stats), kTolerance<T>);
      norm_forward(kind, x, w, b, kEps, x, stats, Stream{});
      EXPECT_TRUE(same_bytes(x, y)) << "in place";
    }
}

TYPED_TEST(Norm, LargeMeanAndScale) {
  using T = TypeParam;
  for (double scale : {1e-3, 1e4, 1e15}) {
    const auto x = random_tensor<T>({3, 100}, 1, scale);
    for (int64_t i = 0; i < 300; ++i) x.tensor.template as<T>()[i] += static_cast<T>(100 * scale);
    const auto w = random_tensor<T>({100}, 2), b = random_tensor<T>({100}, 3);
    const auto y = nan_tensor<T>({3, 100}), stats = nan_tensor<T>({3, 2});
    norm_forward(NormKind::kLayer, x, w, b, kEps, y, stats, Stream{});
    // The mean is stored in the dtype, rounded: 100 deviations away that costs 100 units of rounding.
    EXPECT_LT(relative_rms(y, plain_norm(NormKind::kLayer, x, w, b).y), 100 * kTolerance<T>);
  }
}

TEST(NormGradient, AgainstDifferences) {
  for (NormKind kind : kKinds)
    for (const auto& [N, D] : std::vector<std::array<int64_t, 2>>{{1, 2}, {5, 7}, {70, 3}}) {
      const bool layer = kind == NormKind::kLayer, weighted = kind != NormKind::kSimpleRms;
      const auto x = random_tensor<double>({N, D}, 1), dy = random_tensor<double>({N, D}, 2);
      const auto w = vector_of<double>(weighted, D, 3), b = vector_of<double>(layer, D, 4);
      const auto y = nan_tensor<double>({N, D}), stats = nan_tensor<double>({N, 2}), dx = nan_tensor<double>({N, D});
      const auto loss = [&] {
        const auto other = nan_tensor<double>({N, 2});
        norm_forward(kind, x, w, b, 0.1, y, other, Stream{});
        return dot(y, dy);
      };
      norm_forward(kind, x, w, b, 0.1, y, stats, Stream{});
      OwnedTensor dw, db;
      if (weighted) dw = OwnedTensor({D}, DType::kFloat64);
      if (layer) db = OwnedTensor({D}, DType::kFloat64);
      norm_backward(kind, x, w, stats, dy, dx, 0, dw, db, Stream{});
      EXPECT_LT(relative_rms(dx, numeric_gradient(x, loss)), kDifferenceTolerance) << to_string(kind);
      if (weighted) {
        EXPECT_LT(relative_rms(dw, numeric_gradient(w, loss)), kDifferenceTolerance);
      }
      if (layer) {
        EXPECT_LT(relative_rms(db, numeric_gradient(b, loss)), kDifferenceTolerance);
      }
    }
}

template <class T>
std::vector<OwnedTensor> gradients(NormKind kind, int64_t N, int64_t D, double beta, double start) {
  const bool layer = kind == NormKind::kLayer, weighted = kind != NormKind::kSimpleRms;
  const auto x = random_tensor<T>({N, D}, 1), dy = random_tensor<T>({N, D}, 2);
  const auto w = vector_of<T>(weighted, D, 3), b = vector_of<T>(layer, D, 4);
  const auto y = nan_tensor<T>({N, D}), stats = nan_tensor<T>({N, 2});
  norm_forward(kind, x, w, b, kEps, y, stats, Stream{});
  std::vector<OwnedTensor> out;
  out.push_back(beta == 0 ? nan_tensor<T>({N, D}) : random_tensor<T>({N, D}, 5, start));
  if (weighted) out.push_back(random_tensor<T>({D}, 6, start));
  if (layer) out.push_back(random_tensor<T>({D}, 7, start));
  norm_backward(kind, x, w, stats, dy, out[0], beta, weighted ? out[1].tensor : Tensor(),
                layer ? out[2].tensor : Tensor(), Stream{});
  return out;
}

TEST(NormGradient, Float32AgainstFloat64) {
  for (NormKind kind : kKinds)
    for (const auto& [N, D] : std::vector<std::array<int64_t, 2>>{{0, 4}, {1, 33}, {200, 64}, {1000, 256}})
      for (double beta : {0.0, 1.0}) {
        const auto single = gradients<float>(kind, N, D, beta, 1.0), wide = gradients<double>(kind, N, D, beta, 1.0);
        for (size_t i = 0; i < wide.size(); ++i)
          EXPECT_LT(relative_rms(single[i], to_doubles(wide[i])), 2e-6) << to_string(kind) << " output " << i;
      }
}

TEST(NormGradient, Accumulates) {
  for (NormKind kind : kKinds) {
    const auto fresh = gradients<double>(kind, 70, 5, 1.0, 0.0), added = gradients<double>(kind, 70, 5, 1.0, 1.0);
    for (size_t i = 0; i < fresh.size(); ++i) {
      auto expected = to_doubles(random_tensor<double>(fresh[i].tensor.shape, 5 + i));
      for (size_t j = 0; j < expected.size(); ++j) expected[j] += to_doubles(fresh[i])[j];
      EXPECT_LT(relative_rms(added[i], expected), 1e-14) << to_string(kind) << " output " << i;
    }
  }
}

TYPED_TEST(Norm, SameBitsOnAnyThreads) {
  for (NormKind kind : kKinds)
    expect_same_on_any_threads([=] { return gradients<TypeParam>(kind, 517, 70, 1.0, 1.0); });
}

TEST(NormErrors, MissingAndSuperfluousVectors) {
  const OwnedTensor x({4, 8}, DType::kFloat32), stats({4, 2}, DType::kFloat32), w({8}, DType::kFloat32);
  EXPECT_THROW(norm_forward(NormKind::kRms, x, {}, {}, kEps, x, stats, Stream{}), Error);
  EXPECT_THROW(norm_forward(NormKind::kSimpleRms, x, w, {}, kEps, x, stats, Stream{}), Error);
  EXPECT_THROW(norm_forward(NormKind::kLayer, x, w, {}, kEps, x, stats, Stream{}), Error);
  EXPECT_THROW(norm_backward(NormKind::kRms, x, w, stats, x, x, 0.5, w, {}, Stream{}), Error);
  EXPECT_EQ(parse_norm_kind("simple_rmsnorm"), NormKind::kSimpleRms);
  EXPECT_THROW(parse_norm_kind("batchnorm"), Error);
}

}  // namespace
}  // namespace baton
