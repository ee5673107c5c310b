// Cross-entropy: log-sum-exp about the row's largest logit, so that no exponent is positive.
#include "kernels/loss.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/dispatch.h"

namespace baton {
namespace {

constexpr int64_t kColumns = 1024;  // exponentials summed in the working dtype before the sum goes on in double

/// e[j] = exp(x[j] - largest); their sum. e may be x.
template <class T>
double exponentials(const T* x, T largest, int64_t vocab, T* e) {
  double sum = 0;
  for (int64_t first = 0; first < vocab; first += kColumns) {
    const int64_t last = std::min(vocab, first + kColumns);
    T part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t j = first; j < last; ++j) {
      const T value = std::exp(x[j] - largest);
      e[j] = value;
      part += value;
    }
    sum += static_cast<double>(part);
  }
  return sum;
}

/// The loss of one row; e [vocab] becomes the exponentials.
template <class T>
double row_loss(const T* x, int64_t target, int64_t vocab, double scale, bool gradient, T* e) {
  T largest = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < vocab; ++j) largest = x[j] > largest ? x[j] : largest;
  const double at_target = x[target];
  const double sum = exponentials(x, largest, vocab, e);
  if (gradient) {
    const T factor = static_cast<T>(scale / sum);
    const T target_gradient = static_cast<T>(scale * (static_cast<double>(e[target]) - sum) / sum);
#pragma omp simd
    for (int64_t j = 0; j < vocab; ++j) e[j] *= factor;
    e[target] = target_gradient;
  }
  return std::log(sum) + static_cast<double>(largest) - at_target;
}

void check_targets(const Tensor& targets, int64_t vocab) {
  const int32_t* p = targets.as<int32_t>();
  for (int64_t i = 0; i < targets.dim(0); ++i)
    CHECK(p[i] >= -1 && p[i] < vocab, "target {} of row {} is not in [-1, {})", p[i], i, vocab);
}

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& losses, double gradient_scale,
                   const Tensor& dlogits, const Stream& stream) {
  BATON_ON_CUDA(stream, cross_entropy(logits, targets, losses, gradient_scale, dlogits, stream));
  CHECK(logits.shape.rank() == 2, "cross_entropy takes logits [N, vocab], got {}", logits.shape.str());
  const int64_t N = logits.dim(0), vocab = logits.dim(1);
  check_tensor(targets, "targets", {N}, DType::kInt32);
  check_tensor(losses, "losses", {N}, DType::kFloat64);
  const bool gradient = dlogits.defined();
  if (gradient) check_tensor(dlogits, "dlogits", logits.shape, logits.dtype);
  check_targets(targets, vocab);
  dispatch_float(logits.dtype, [&]<class T>() {
    const T* px = logits.as<T>();
    const int32_t* target = targets.as<int32_t>();
    T* pd = gradient ? dlogits.as<T>() : nullptr;
    for_blocks(N, 8, [=, loss = losses.as<double>()](int64_t first, int64_t last) {
      std::vector<T> scratch(gradient ? 0 : vocab);
      for (int64_t i = first; i < last; ++i) {
        T* e = gradient ? pd + i * vocab : scratch.data();
        loss[i] = 0;
        if (target[i] >= 0)
          loss[i] = row_loss(px + i * vocab, target[i], vocab, gradient_scale, gradient, e);
        else if (gradient)
          std::fill_n(e, vocab, T{0});
      }
    });
  });
}

}  // namespace baton
