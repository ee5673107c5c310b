// Fixed log decays a head: RetNet's, and the two forms that TransNormerLLM checkpoints use.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/memory.h"

namespace baton {

/// log(1 - 2^(-5-head)), RetNet (arXiv 2307.08621).
inline double retnet_log_decay(int64_t head) { return std::log1p(-std::exp2(-5.0 - static_cast<double>(head))); }

/// ALiBi slopes 2^(-8 (head + 1) / heads); where heads is not a power of two, those of the power below it, then every
/// second one of the power above (Press et al., arXiv 2108.12409).
inline double alibi_slope(int64_t head, int64_t heads) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  if (head < power) return std::exp2(-8.0 * static_cast<double>(head + 1) / static_cast<double>(power));
  return std::exp2(-8.0 * static_cast<double>(2 * (head - power) + 1) / static_cast<double>(2 * power));
}

/// `form` is model.slope: "alibi" (slope times a factor that falls with the layer; factor 1 for one layer) or "fla"
/// (-(8 / heads) (1 - layer / layers) head, as flash-linear-attention has it).
inline double lightning_log_decay(const std::string& form, int64_t layer, int64_t layers, int64_t head, int64_t heads) {
  const auto l = static_cast<double>(layer), L = static_cast<double>(layers);
  if (form == "fla") return -(8.0 / static_cast<double>(heads)) * (1.0 - l / L) * static_cast<double>(head);
  const double factor = layers > 1 ? 1.0 - l / (L - 1.0) + 1e-5 : 1.0;
  return -alibi_slope(head, heads) * factor;
}

/// Fills x [H] on its device, unless it has no memory (measuring arena). Returns the weakest, which is the largest.
template <class F>
double fill_log_decays(const Tensor& x, F&& log_decay) {
  double weakest = log_decay(0);
  for (int64_t head = 1; head < x.numel(); ++head) weakest = std::max(weakest, log_decay(head));
  if (x.data == nullptr) return weakest;
  const OwnedTensor host(x.shape, x.dtype);
  dispatch_float(x.dtype, [&]<class T>() {
    for (int64_t head = 0; head < x.numel(); ++head) host.tensor.as<T>()[head] = static_cast<T>(log_decay(head));
  });
  const Stream stream{x.device};
  copy(host, x, stream);
  synchronize(stream);
  return weakest;
}

}  // namespace baton
