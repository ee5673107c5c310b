// AdamW against the paper's formula in double, over several steps.
#include "kernels/adamw.h"

#include "tests/kernel/op_test.h"

namespace baton {
namespace {

template <class T>
class AdamW : public ::testing::Test {};
TYPED_TEST_SUITE(AdamW, FloatTypes);

constexpr int kSteps = 20;

AdamWStep step_of(int64_t step) {
  AdamWStep s;
  s.lr = 1e-2;
  s.beta1 = 0.9;
  s.beta2 = 0.999;
  s.weight_decay = 0.1;
  s.gradient_scale = 0.5;
  s.step = step;
  return s;
}

/// w, m and v after kSteps steps.
template <class T>
std::vector<OwnedTensor> train(int64_t n, double gradient_size) {
  std::vector<OwnedTensor> out;
  out.push_back(random_tensor<T>({n}, 1));
  out.emplace_back(Shape{n}, dtype_of<T>());
  out.emplace_back(Shape{n}, dtype_of<T>());
  for (int64_t s = 1; s <= kSteps; ++s)
    adamw(step_of(s), out[0], random_tensor<T>({n}, 100 + s, gradient_size), out[1], out[2], Stream{});
  return out;
}

std::vector<std::vector<double>> plain_train(int64_t n, double gradient_size) {
  std::vector<double> w = to_doubles(random_tensor<double>({n}, 1)), m(n), v(n);
  for (int64_t s = 1; s <= kSteps; ++s) {
    const AdamWStep p = step_of(s);
    const auto gradient = to_doubles(random_tensor<double>({n}, 100 + s, gradient_size));
    for (int64_t i = 0; i < n; ++i) {
      const double g = p.gradient_scale * gradient[i];
      m[i] = p.beta1 * m[i] + (1 - p.beta1) * g;
      v[i] = p.beta2 * v[i] + (1 - p.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(p.beta1, s)), v_hat = v[i] / (1 - std::pow(p.beta2, s));
      w[i] -= p.lr * (m_hat / (std::sqrt(v_hat) + p.eps) + p.weight_decay * w[i]);
    }
  }
  return {w, m, v};
}

TYPED_TEST(AdamW, AgainstTheFormula) {
  for (int64_t n : {0, 1, 31, 5000})
    for (double size : {1.0, 1e-6, 1e6}) {
      const auto got = train<TypeParam>(n, size);
      const auto expected = plain_train(n, size);
      for (size_t i = 0; i < 3; ++i)
        EXPECT_LT(relative_rms(got[i], expected[i]), 3 * kTolerance<TypeParam>) << "output " << i << ", size " << size;
    }
}

TYPED_TEST(AdamW, FirstStepMovesByTheLearningRate) {
  using T = TypeParam;
  const OwnedTensor w({3}, dtype_of<T>()), m({3}, dtype_of<T>()), v({3}, dtype_of<T>());
  const auto g = random_tensor<T>({3}, 1);
  AdamWStep step = step_of(1);
  step.weight_decay = 0;
  adamw(step, w, g, m, v, Stream{});
  for (double x : to_doubles(w)) EXPECT_NEAR(std::fabs(x), step.lr, 1e-6 * step.lr);
}

TYPED_TEST(AdamW, DecayAloneShrinks) {
  using T = TypeParam;
  const auto w = random_tensor<T>({40}, 1);
  const OwnedTensor g({40}, dtype_of<T>()), m({40}, dtype_of<T>()), v({40}, dtype_of<T>());
  auto expected = to_doubles(w);
  for (double& x : expected) x *= 1 - 1e-2 * 0.1;
  adamw(step_of(1), w, g, m, v, Stream{});
  EXPECT_LT(relative_rms(w, expected), kTolerance<T>);
}

TYPED_TEST(AdamW, SameBitsOnAnyThreads) {
  expect_same_on_any_threads([] { return train<TypeParam>(13001, 1.0); });
}

TEST(AdamWErrors, StepAndShapes) {
  const OwnedTensor w({4}, DType::kFloat32), other({5}, DType::kFloat32);
  EXPECT_THROW(adamw(step_of(0), w, w, w, w, Stream{}), Error);
  EXPECT_THROW(adamw(step_of(1), w, other, w, w, Stream{}), Error);
  EXPECT_THROW(adamw(step_of(1), w, w, w, other, Stream{}), Error);
}

}  // namespace
}  // namespace baton
