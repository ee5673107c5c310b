// Elementwise operations against plain loops in double and central differences.
#include "kernels/elementwise.h"

#include "tests/kernel/op_test.h"

namespace baton {
namespace {

constexpr Activation kActs[] = {Activation::kNone, Activation::kSilu};
constexpr double kTemperature = 16;
const Shape kShapes[] = {{0}, {1}, {17}, {3, 5, 7}, {2, 4099}};

template <class T>
class Elementwise : public ::testing::Test {};
TYPED_TEST_SUITE(Elementwise, FloatTypes);

double plain_sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double plain_act(Activation act, double x) { return act == Activation::kSilu ? x * plain_sigmoid(x) : x; }
double plain_log_sigmoid(double x) { return x >= 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x)); }

std::vector<double> map(const Tensor& x, const std::function<double(double)>& f) {
  auto out = to_doubles(x);
  for (double& v : out) v = f(v);
  return out;
}

TYPED_TEST(Elementwise, ForwardAgainstPlainLoops) {
  using T = TypeParam;
  for (const Shape& shape : kShapes) {
    const auto x = random_tensor<T>(shape, 1, 4.0), b = random_tensor<T>(shape, 2);
    for (Activation act : kActs) {
      const auto y = nan_tensor<T>(shape), z = nan_tensor<T>(shape), alias = clone(x);
      activation_forward(act, x, y, Stream{});
      EXPECT_LT(relative_rms(y, map(x, [=](double v) { return plain_act(act, v); })), kTolerance<T>);
      activation_forward(act, alias, alias, Stream{});
      EXPECT_TRUE(same_bytes(alias, y));
      glu_forward(act, x, b, z, Stream{});
      auto expected = map(x, [=](double v) { return plain_act(act, v); });
      for (size_t i = 0; i < expected.size(); ++i) expected[i] *= to_doubles(b)[i];
      EXPECT_LT(relative_rms(z, expected), kTolerance<T>);
    }
    const auto g = nan_tensor<T>(shape), alias = clone(x);
    log_gate_forward(x, kTemperature, g, Stream{});
    EXPECT_LT(relative_rms(g, map(x, [](double v) { return plain_log_sigmoid(v) / kTemperature; })), kTolerance<T>);
    log_gate_forward(alias, kTemperature, alias, Stream{});
    EXPECT_TRUE(same_bytes(alias, g));
  }
}

TEST(ElementwiseGradient, AgainstDifferences) {
  const Shape shape{5, 7};
  const auto x = random_tensor<double>(shape, 1, 3.0), b = random_tensor<double>(shape, 2),
             dy = random_tensor<double>(shape, 3);
  const auto y = nan_tensor<double>(shape);
  for (Activation act : kActs) {
    const auto dx = nan_tensor<double>(shape), da = nan_tensor<double>(shape), db = nan_tensor<double>(shape);
    activation_backward(act, x, dy, dx, Stream{});
    EXPECT_LT(
        relative_rms(dx, numeric_gradient(x, [&] { return activation_forward(act, x, y, Stream{}), dot(y, dy); })),
        kDifferenceTolerance);
    const auto glu_loss = [&] { return glu_forward(act, x, b, y, Stream{}), dot(y, dy); };
    glu_backward(act, x, b, dy, da, db, Stream{});
    EXPECT_LT(relative_rms(da, numeric_gradient(x, glu_loss)), kDifferenceTolerance);
    EXPECT_LT(relative_rms(db, numeric_gradient(b, glu_loss)), kDifferenceTolerance);
  }
  const auto dx = nan_tensor<double>(shape);
  log_gate_backward(x, kTemperature, dy, dx, Stream{});
  EXPECT_LT(
      relative_rms(dx, numeric_gradient(x, [&] { return log_gate_forward(x, kTemperature, y, Stream{}), dot(y, dy); })),
      kDifferenceTolerance);
}

/// dx of activation and log gate, da and db of the GLU; `alias` writes them over the inputs where the header allows it.
template <class T>
std::vector<OwnedTensor> gradients(Activation act, const Shape& shape, int alias) {
  auto x = random_tensor<T>(shape, 1, 3.0);
  std::vector<OwnedTensor> out(4);
  for (int i = 0; i < 4; ++i) out[i] = nan_tensor<T>(shape);
  const auto dy = random_tensor<T>(shape, 3);
  if (alias == 0) {
    const auto b = random_tensor<T>(shape, 2);
    activation_backward(act, x, dy, out[0], Stream{});
    log_gate_backward(x, kTemperature, dy, out[1], Stream{});
    glu_backward(act, x, b, dy, out[2], out[3], Stream{});
    return out;
  }
  copy(dy, out[0], Stream{});
  copy(dy, out[1], Stream{});
  activation_backward(act, x, out[0], out[0], Stream{});
  log_gate_backward(x, kTemperature, out[1], out[1], Stream{});
  copy(x, out[2], Stream{});
  const auto b = random_tensor<T>(shape, 2);
  copy(alias == 1 ? b : dy, out[3], Stream{});
  glu_backward(act, out[2], alias == 1 ? out[3] : b, alias == 1 ? dy : out[3], out[2], out[3], Stream{});
  return out;
}

TEST(ElementwiseGradient, Float32AgainstFloat64) {
  for (const Shape& shape : kShapes)
    for (Activation act : kActs) {
      const auto single = gradients<float>(act, shape, 0), wide = gradients<double>(act, shape, 0);
      for (size_t i = 0; i < wide.size(); ++i) EXPECT_LT(relative_rms(single[i], to_doubles(wide[i])), 2e-6) << i;
    }
}

TYPED_TEST(Elementwise, GradientsInPlace) {
  for (const Shape& shape : kShapes)
    for (Activation act : kActs)
      for (int alias : {1, 2}) {
        const auto apart = gradients<TypeParam>(act, shape, 0), in_place = gradients<TypeParam>(act, shape, alias);
        for (size_t i = 0; i < apart.size(); ++i) EXPECT_TRUE(same_bytes(apart[i], in_place[i])) << i << " " << alias;
      }
}

TYPED_TEST(Elementwise, ExtremeInputs) {
  using T = TypeParam;
  const std::vector<double> values{-1e4, -200, -90, -20, -1e-6, 0, 1e-6, 20, 90, 200, 1e4};
  const int64_t n = 3 * static_cast<int64_t>(values.size());
  const OwnedTensor x({n}, dtype_of<T>()), one({n}, dtype_of<T>());
  for (int64_t i = 0; i < n; ++i) {
    x.tensor.template as<T>()[i] = static_cast<T>(values[i % values.size()]);
    one.tensor.template as<T>()[i] = 1;
  }
  const auto gate = nan_tensor<T>({n}), dgate = nan_tensor<T>({n}), y = nan_tensor<T>({n}), dy = nan_tensor<T>({n});
  log_gate_forward(x, 1.0, gate, Stream{});
  log_gate_backward(x, 1.0, one, dgate, Stream{});
  activation_forward(Activation::kSilu, x, y, Stream{});
  activation_backward(Activation::kSilu, x, one, dy, Stream{});
  for (int64_t i = 0; i < n; ++i) {
    const double v = to_doubles(x)[i], s = plain_sigmoid(v);
    // A log gate is good to the last digits where it is tiny, too; below the smallest normal number it may be 0.
    const double tiny = std::numeric_limits<T>::min(), relative = 8 * std::numeric_limits<T>::epsilon();
    const auto near = [&](double got, double expected, double slack) {
      EXPECT_LE(std::fabs(got - expected), relative * std::fabs(expected) + slack) << "at " << v;
    };
    near(to_doubles(gate)[i], plain_log_sigmoid(v), tiny);
    near(to_doubles(dgate)[i], plain_sigmoid(-v), tiny);
    near(to_doubles(y)[i], v * s, 1e4 * tiny);
    near(to_doubles(dy)[i], s + v * s * plain_sigmoid(-v),
         std::fabs(v) * std::numeric_limits<T>::epsilon() * s + 1e4 * tiny);
  }
}

TYPED_TEST(Elementwise, BiasAndItsGradient) {
  using T = TypeParam;
  for (const auto& [N, D] : std::vector<std::array<int64_t, 2>>{{0, 3}, {1, 1}, {70, 65}, {1000, 130}}) {
    const auto x = random_tensor<T>({N, D}, 1), bias = random_tensor<T>({D}, 2), db = random_tensor<T>({D}, 3);
    auto sum = to_doubles(db), shifted = to_doubles(x);
    for (int64_t i = 0; i < N * D; ++i) {
      sum[i % D] += shifted[i];
      shifted[i] += to_doubles(bias)[i % D];
    }
    bias_gradient(x, db, Stream{});
    EXPECT_LT(relative_rms(db, sum), 2 * kTolerance<T>);
    add_bias(x, bias, Stream{});
    EXPECT_LT(relative_rms(x, shifted), kTolerance<T>);
  }
}

TYPED_TEST(Elementwise, AddScaledAndSumOfSquares) {
  using T = TypeParam;
  for (const Shape& shape : kShapes) {
    const auto x = random_tensor<T>(shape, 1), y = random_tensor<T>(shape, 2);
    auto expected = to_doubles(y);
    long double squares = 0;  // a plain sum in double is itself wrong by 1e-14
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] -= 0.3 * to_doubles(x)[i];
      squares += std::pow(static_cast<long double>(to_doubles(x)[i]), 2);
    }
    add_scaled(x, -0.3, y, Stream{});
    EXPECT_LT(relative_rms(y, expected), kTolerance<T>);
    EXPECT_NEAR(sum_of_squares(x, Stream{}), static_cast<double>(squares), 1e-14 * static_cast<double>(squares));
  }
  const auto large = random_tensor<T>({100}, 1, 1e30);  // squares overflow float32
  EXPECT_GT(sum_of_squares(large, Stream{}), 1e60);
  EXPECT_TRUE(std::isfinite(sum_of_squares(large, Stream{})));
}

TYPED_TEST(Elementwise, AllFiniteSeesEveryElement) {
  using T = TypeParam;
  using Limits = std::numeric_limits<T>;
  for (int64_t n : {1, 5, 4097, 9001}) {
    const auto x = random_tensor<T>({n}, 1);
    T* p = x.tensor.template as<T>();
    p[0] = Limits::max();
    EXPECT_TRUE(all_finite(x, Stream{}));
    for (int64_t i : {int64_t{0}, n / 2, n - 1})
      for (T bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), -Limits::quiet_NaN()}) {
        const T kept = p[i];
        p[i] = bad;
        EXPECT_FALSE(all_finite(x, Stream{})) << i << " of " << n << ": " << bad;
        const OwnedTensor mark({1}, DType::kInt32);
        mark_not_finite(x, mark, Stream{});
        EXPECT_EQ(*mark.tensor.as<int32_t>(), 1);
        p[i] = kept;
      }
  }
  EXPECT_TRUE(all_finite(OwnedTensor({0}, dtype_of<T>()), Stream{}));
  const OwnedTensor mark = int_tensor<int32_t>({1}, {7});
  mark_not_finite(random_tensor<T>({9001}, 1), mark, Stream{});
  EXPECT_EQ(*mark.tensor.as<int32_t>(), 7);
}

TYPED_TEST(Elementwise, SameBitsOnAnyThreads) {
  using T = TypeParam;
  expect_same_on_any_threads([] { return gradients<T>(Activation::kSilu, {3, 9001}, 0); });
  expect_same_on_any_threads([] {
    std::vector<OwnedTensor> out;
    const auto x = random_tensor<T>({1003, 77}, 1);
    out.push_back(random_tensor<T>({77}, 2));
    bias_gradient(x, out[0], Stream{});
    out.emplace_back(Shape{1}, DType::kFloat64);
    out[1].tensor.template as<double>()[0] = sum_of_squares(x, Stream{});
    out.push_back(nan_tensor<T>({1003, 77}));
    log_gate_forward(x, kTemperature, out[2], Stream{});
    return out;
  });
}

TEST(ElementwiseErrors, Shapes) {
  const OwnedTensor x({4, 8}, DType::kFloat32), y({8, 4}, DType::kFloat32), wide({4, 8}, DType::kFloat64);
  EXPECT_THROW(activation_forward(Activation::kSilu, x, y, Stream{}), Error);
  EXPECT_THROW(glu_forward(Activation::kSilu, x, wide, x, Stream{}), Error);
  EXPECT_THROW(glu_backward(Activation::kSilu, x, x, x, x, y, Stream{}), Error);
  EXPECT_THROW(add_bias(x, y, Stream{}), Error);
  EXPECT_THROW(bias_gradient(x, y, Stream{}), Error);
  EXPECT_THROW(log_gate_backward(x, 1, x, wide, Stream{}), Error);
  EXPECT_THROW(add_scaled(x, 1, y, Stream{}), Error);
}

TEST(Convert, RoundsToNearestEvenInEveryDtype) {
  const std::vector<double> values{0,
                                   1,
                                   -2.5,
                                   1.00390625,
                                   1.01171875,
                                   1.003906250001,
                                   3.38953e38,
                                   3.4e38,
                                   1e-40,
                                   1e300,
                                   std::numeric_limits<double>::quiet_NaN()};
  // What bfloat16 makes of them, by hand: halves go to the even neighbour; the last finite number is 0x1.fep127.
  const std::vector<double> expected{0, 1, -2.5, 1, 1.015625, 1, 0x1.fep127, HUGE_VAL, 0x1p-133, HUGE_VAL};
  const int64_t n = static_cast<int64_t>(values.size());
  const OwnedTensor wide({n}, DType::kFloat64), single({n}, DType::kFloat32), half({n}, DType::kBFloat16);
  std::copy(values.begin(), values.end(), wide.tensor.as<double>());
  convert(wide, half, Stream{});
  const OwnedTensor back({n}, DType::kFloat64);
  convert(half, back, Stream{});
  convert(half, single, Stream{});
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(back.tensor.as<double>()[i], expected[i]) << values[i];
    EXPECT_EQ(single.tensor.as<float>()[i], static_cast<float>(expected[i])) << values[i];
  }
  EXPECT_TRUE(std::isnan(back.tensor.as<double>()[n - 1]));
  convert(wide, single, Stream{});
  EXPECT_EQ(single.tensor.as<float>()[3], 1.00390625F);
  EXPECT_THROW(convert(wide, OwnedTensor({n + 1}, DType::kFloat32), Stream{}), Error);
}

}  // namespace
}  // namespace baton
