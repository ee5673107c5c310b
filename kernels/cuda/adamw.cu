// AdamW (Loshchilov and Hutter, arXiv 1711.05101), with g the scaled gradient:
//
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
//   w -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w)
//
// w, gradient, m, v: n elements, float32. map.cuh has the thread mapping.
#include <cmath>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"

namespace baton::cuda {
namespace {

struct Update {
  float scale, beta1, rest1, beta2, rest2, m_factor, v_factor, eps, decay;

  __device__ void operator()(float gradient, float& w, float& m, float& v) const {
    const float g = gradient * scale;
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
    w -= m_factor * m / (sqrtf(v) * v_factor + eps) + decay * w;
  }
};

/// Formed in double: in float32 1 - beta2 and the corrections of early steps would lose half their digits.
Update update_of(const AdamWStep& step) {
  const double t = static_cast<double>(step.step);
  const double m_correction = 1 - std::pow(step.beta1, t), v_correction = 1 - std::pow(step.beta2, t);
  const auto single = [](double x) { return static_cast<float>(x); };
  return {single(step.gradient_scale),
          single(step.beta1),
          single(1 - step.beta1),
          single(step.beta2),
          single(1 - step.beta2),
          single(step.lr / m_correction),
          single(1 / std::sqrt(v_correction)),
          single(step.eps),
          single(step.lr * step.weight_decay)};
}

}  // namespace

void adamw(const AdamWStep& step, const Tensor& w, const Tensor& gradient, const Tensor& m, const Tensor& v,
           const Stream& stream) {
  check_operand(w, "w", w.shape, DType::kFloat32, stream);
  check_operand(gradient, "gradient", w.shape, DType::kFloat32, stream);
  check_operand(m, "m", w.shape, DType::kFloat32, stream);
  check_operand(v, "v", w.shape, DType::kFloat32, stream);
  CHECK(step.step >= 1, "AdamW counts its steps from 1, got {}", step.step);
  map<float>(w.numel(), stream, update_of(step), In<float>{pointer<float>(gradient)}, InOut<float>{pointer<float>(w)},
             InOut<float>{pointer<float>(m)}, InOut<float>{pointer<float>(v)});
}

}  // namespace baton::cuda
