// Elementwise operations, in blocks of a fixed number of elements.
#include "kernels/elementwise.h"

#include <bit>
#include <limits>
#include <vector>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "runtime/bfloat16.h"

namespace baton {
namespace {

template <class T>
struct None {
  static T value(T x) { return x; }
  static T slope(T) { return T{1}; }
};

template <class T>
struct Silu {
  static T value(T x) { return x * sigmoid(x); }
  static T slope(T x) {
    const T s = sigmoid(x);
    return s + x * s * (T{1} - s);
  }
};

/// Calls f.template operator()<T, A>() by dtype and activation.
template <class F>
void dispatch(DType dtype, Activation act, const F& f) {
  dispatch_float(dtype, [&]<class T>() {
    switch (act) {
      case Activation::kNone:
        return f.template operator()<T, None<T>>();
      case Activation::kSilu:
        return f.template operator()<T, Silu<T>>();
    }
  });
}

/// dispatch_float with bfloat16, which the CPU stores but does not compute in.
template <class F>
void dispatch_stored(DType dtype, const F& f) {
  if (dtype == DType::kBFloat16) {
    f.template operator()<BFloat16>();
  } else {
    dispatch_float(dtype, f);
  }
}

template <class Y, class X>
Y converted(X x) {
  if constexpr (std::is_same_v<X, Y>) return x;
  return static_cast<Y>(x);
}

/// Runs f(i) for every element, in blocks, as one vector loop each.
template <class F>
void for_elements(int64_t n, const F& f) {
  for_blocks(n, kElementBlock, [=](int64_t first, int64_t last) {
#pragma omp simd
    for (int64_t i = first; i < last; ++i) f(i);
  });
}

}  // namespace

void activation_forward(Activation act, const Tensor& x, const Tensor& y, const Stream& stream) {
  BATON_ON_CUDA(stream, activation_forward(act, x, y, stream));
  check_tensor(y, "y", x.shape, x.dtype);
  dispatch(x.dtype, act, [&]<class T, class A>() {
    for_elements(x.numel(), [px = x.as<T>(), py = y.as<T>()](int64_t i) { py[i] = A::value(px[i]); });
  });
}

void activation_backward(Activation act, const Tensor& x, const Tensor& dy, const Tensor& dx, const Stream& stream) {
  BATON_ON_CUDA(stream, activation_backward(act, x, dy, dx, stream));
  check_tensor(dy, "dy", x.shape, x.dtype);
  check_tensor(dx, "dx", x.shape, x.dtype);
  dispatch(x.dtype, act, [&]<class T, class A>() {
    for_elements(x.numel(), [px = x.as<T>(), pdy = dy.as<T>(), pdx = dx.as<T>()](int64_t i) {
      pdx[i] = pdy[i] * A::slope(px[i]);
    });
  });
}

void glu_forward(Activation act, const Tensor& a, const Tensor& b, const Tensor& y, const Stream& stream) {
  BATON_ON_CUDA(stream, glu_forward(act, a, b, y, stream));
  check_tensor(b, "b", a.shape, a.dtype);
  check_tensor(y, "y", a.shape, a.dtype);
  dispatch(a.dtype, act, [&]<class T, class A>() {
    for_elements(a.numel(),
                 [pa = a.as<T>(), pb = b.as<T>(), py = y.as<T>()](int64_t i) { py[i] = A::value(pa[i]) * pb[i]; });
  });
}

void glu_backward(Activation act, const Tensor& a, const Tensor& b, const Tensor& dy, const Tensor& da,
                  const Tensor& db, const Stream& stream) {
  BATON_ON_CUDA(stream, glu_backward(act, a, b, dy, da, db, stream));
  check_tensor(b, "b", a.shape, a.dtype);
  check_tensor(dy, "dy", a.shape, a.dtype);
  check_tensor(da, "da", a.shape, a.dtype);
  check_tensor(db, "db", a.shape, a.dtype);
  dispatch(a.dtype, act, [&]<class T, class A>() {
    const T *pa = a.as<T>(), *pb = b.as<T>(), *pdy = dy.as<T>();
    T *pda = da.as<T>(), *pdb = db.as<T>();
    for_elements(a.numel(), [=](int64_t i) {
      // All reads come before the writes, which may go to the same place.
      const T x = pa[i], other = pb[i], g = pdy[i];
      pda[i] = g * other * A::slope(x);
      pdb[i] = g * A::value(x);
    });
  });
}

void add_bias(const Tensor& x, const Tensor& bias, const Stream& stream) {
  BATON_ON_CUDA(stream, add_bias(x, bias, stream));
  CHECK(x.shape.rank() == 2, "add_bias takes rows [N, D], got {}", x.shape.str());
  const int64_t D = x.dim(1);
  check_tensor(bias, "bias", {D}, x.dtype);
  dispatch_float(x.dtype, [&]<class T>() {
    for_blocks(x.dim(0), kRowBlock, [=, px = x.as<T>(), pb = bias.as<T>()](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        T* row = px + i * D;
#pragma omp simd
        for (int64_t j = 0; j < D; ++j) row[j] += pb[j];
      }
    });
  });
}

void bias_gradient(const Tensor& dy, const Tensor& db, const Stream& stream) {
  BATON_ON_CUDA(stream, bias_gradient(dy, db, stream));
  CHECK(dy.shape.rank() == 2, "bias_gradient takes rows [N, D], got {}", dy.shape.str());
  const int64_t N = dy.dim(0), D = dy.dim(1), blocks = num_blocks(N, kRowBlock);
  check_tensor(db, "db", {D}, dy.dtype);
  dispatch_float(dy.dtype, [&]<class T>() {
    std::vector<T> parts(blocks * D);
    for_blocks(N, kRowBlock, [=, p = parts.data(), pdy = dy.as<T>()](int64_t first, int64_t last) {
      T* part = p + first / kRowBlock * D;
      for (int64_t i = first; i < last; ++i) {
        const T* row = pdy + i * D;
#pragma omp simd
        for (int64_t j = 0; j < D; ++j) part[j] += row[j];
      }
    });
    add_parts(parts.data(), blocks, D, db.as<T>());
  });
}

void log_gate_forward(const Tensor& x, double temperature, const Tensor& g, const Stream& stream) {
  BATON_ON_CUDA(stream, log_gate_forward(x, temperature, g, stream));
  check_tensor(g, "g", x.shape, x.dtype);
  dispatch_float(x.dtype, [&]<class T>() {
    const T factor = static_cast<T>(1 / temperature);
    for_elements(x.numel(), [=, px = x.as<T>(), pg = g.as<T>()](int64_t i) { pg[i] = log_sigmoid(px[i]) * factor; });
  });
}

void log_gate_backward(const Tensor& x, double temperature, const Tensor& dg, const Tensor& dx, const Stream& stream) {
  BATON_ON_CUDA(stream, log_gate_backward(x, temperature, dg, dx, stream));
  check_tensor(dg, "dg", x.shape, x.dtype);
  check_tensor(dx, "dx", x.shape, x.dtype);
  dispatch_float(x.dtype, [&]<class T>() {
    const T factor = static_cast<T>(1 / temperature);
    for_elements(x.numel(), [=, px = x.as<T>(), pdg = dg.as<T>(), pdx = dx.as<T>()](int64_t i) {
      pdx[i] = pdg[i] * sigmoid(-px[i]) * factor;
    });
  });
}

void add_scaled(const Tensor& x, double alpha, const Tensor& y, const Stream& stream) {
  BATON_ON_CUDA(stream, add_scaled(x, alpha, y, stream));
  check_tensor(y, "y", x.shape, x.dtype);
  dispatch_float(x.dtype, [&]<class T>() {
    const T factor = static_cast<T>(alpha);
    for_elements(x.numel(), [=, px = x.as<T>(), py = y.as<T>()](int64_t i) { py[i] += factor * px[i]; });
  });
}

void convert(const Tensor& x, const Tensor& y, const Stream& stream) {
  BATON_ON_CUDA(stream, convert(x, y, stream));
  check_tensor(y, "y", x.shape, y.dtype);
  dispatch_stored(x.dtype, [&]<class X>() {
    dispatch_stored(y.dtype, [&]<class Y>() {
      for_elements(x.numel(), [px = x.as<X>(), py = y.as<Y>()](int64_t i) { py[i] = converted<Y>(px[i]); });
    });
  });
}

double sum_of_squares(const Tensor& x, const Stream& stream) {
  BATON_ON_CUDA(stream, sum_of_squares(x, stream));
  const int64_t n = x.numel();
  std::vector<double> parts(num_blocks(n, kElementBlock));
  dispatch_float(x.dtype, [&]<class T>() {
    for_blocks(n, kElementBlock, [p = parts.data(), px = x.as<T>()](int64_t first, int64_t last) {
      const T* block = px + first;
      p[first / kElementBlock] = sum_terms(last - first, [=](int64_t i) {
        const double value = block[i];
        return value * value;
      });
    });
  });
  double total = 0;
  for (double part : parts) total += part;
  return total;
}

bool all_finite(const Tensor& x, const Stream& stream) {
  BATON_ON_CUDA(stream, all_finite(x, stream));
  const int64_t n = x.numel();
  std::vector<uint8_t> bad(num_blocks(n, kElementBlock));
  dispatch_float(x.dtype, [&]<class T>() {
    using Bits = std::conditional_t<std::is_same_v<T, float>, uint32_t, uint64_t>;
    const Bits infinity = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
    for_blocks(n, kElementBlock, [=, p = bad.data(), px = x.as<T>()](int64_t first, int64_t last) {
      // Without their sign, numbers are ordered as their bits are, infinity and NaN last.
      Bits largest = 0;
#pragma omp simd reduction(max : largest)
      for (int64_t i = first; i < last; ++i) {
        const Bits magnitude = std::bit_cast<Bits>(px[i]) << 1;
        largest = magnitude > largest ? magnitude : largest;
      }
      p[first / kElementBlock] = (largest >> 1) >= infinity;
    });
  });
  return std::find(bad.begin(), bad.end(), 1) == bad.end();
}

void mark_not_finite(const Tensor& x, const Tensor& mark, const Stream& stream) {
  BATON_ON_CUDA(stream, mark_not_finite(x, mark, stream));
  check_tensor(mark, "mark", {1}, DType::kInt32);
  if (!all_finite(x, stream)) *mark.as<int32_t>() = 1;
}

}  // namespace baton
