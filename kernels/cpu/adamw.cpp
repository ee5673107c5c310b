// AdamW.
#include "kernels/adamw.h"

#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"

namespace baton {

void adamw(const AdamWStep& step, const Tensor& w, const Tensor& gradient, const Tensor& m, const Tensor& v,
           const Stream& stream) {
  BATON_ON_CUDA(stream, adamw(step, w, gradient, m, v, stream));
  check_tensor(gradient, "gradient", w.shape, w.dtype);
  check_tensor(m, "m", w.shape, w.dtype);
  check_tensor(v, "v", w.shape, w.dtype);
  CHECK(step.step >= 1, "AdamW counts its steps from 1, got {}", step.step);
  dispatch_float(w.dtype, [&]<class T>() {
    // Formed in double: in float32 1 - beta2 and the corrections of early steps would lose half their digits.
    const double t = static_cast<double>(step.step);
    const double m_correction = 1 - std::pow(step.beta1, t), v_correction = 1 - std::pow(step.beta2, t);
    const T beta1 = static_cast<T>(step.beta1), rest1 = static_cast<T>(1 - step.beta1);
    const T beta2 = static_cast<T>(step.beta2), rest2 = static_cast<T>(1 - step.beta2);
    const T m_factor = static_cast<T>(step.lr / m_correction), v_factor = static_cast<T>(1 / std::sqrt(v_correction));
    const T decay = static_cast<T>(step.lr * step.weight_decay), eps = static_cast<T>(step.eps);
    const T scale = static_cast<T>(step.gradient_scale);
    const T* pg = gradient.as<T>();
    T *pw = w.as<T>(), *pm = m.as<T>(), *pv = v.as<T>();
    for_blocks(w.numel(), kElementBlock, [=](int64_t first, int64_t last) {
#pragma omp simd
      for (int64_t i = first; i < last; ++i) {
        const T g = pg[i] * scale;
        pm[i] = beta1 * pm[i] + rest1 * g;
        pv[i] = beta2 * pv[i] + rest2 * g * g;
        pw[i] -= m_factor * pm[i] / (std::sqrt(pv[i]) * v_factor + eps) + decay * pw[i];
      }
    });
  });
}

}  // namespace baton
