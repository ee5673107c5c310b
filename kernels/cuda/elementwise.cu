// Elementwise operations: y = act(x), y = act(a) b and their gradients, log gates, sums of arrays, conversions.
// Arrays of n elements, float32 or bfloat16, arithmetic in float32 (map.cuh has the thread mapping). exp overflows to
// infinity at worst, where 1 / (1 + exp(-x)) is the right 0; the log gate's exponent is never positive.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.cuh"

namespace baton::cuda {
namespace {

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

struct None {
  static __device__ float value(float x) { return x; }
  static __device__ float slope(float) { return 1.0F; }
};

struct Silu {
  static __device__ float value(float x) { return x * sigmoid(x); }
  static __device__ float slope(float x) {
    const float s = sigmoid(x);
    return s + x * s * (1.0F - s);
  }
};

template <class A>
struct Value {
  __device__ void operator()(float x, float& y) const { y = A::value(x); }
};

template <class A>
struct Gradient {
  __device__ void operator()(float x, float dy, float& dx) const { dx = dy * A::slope(x); }
};

template <class A>
struct Glu {
  __device__ void operator()(float a, float b, float& y) const { y = A::value(a) * b; }
};

template <class A>
struct GluGradient {
  __device__ void operator()(float a, float b, float dy, float& da, float& db) const {
    da = dy * b * A::slope(a);
    db = dy * A::value(a);
  }
};

struct LogGate {
  float factor;
  __device__ void operator()(float x, float& g) const {
    g = ((x < 0.0F ? x : 0.0F) - log1pf(expf(-fabsf(x)))) * factor;
  }
};

struct LogGateGradient {
  float factor;
  __device__ void operator()(float x, float dg, float& dx) const { dx = dg * sigmoid(-x) * factor; }
};

struct AddScaled {
  float alpha;
  __device__ void operator()(float x, float& y) const { y += alpha * x; }
};

struct Copy {
  template <class V>
  __device__ void operator()(V x, V& y) const {
    y = x;
  }
};

template <class F>
void with_activation(Activation act, const F& f) {
  if (act == Activation::kSilu) {
    f.template operator()<Silu>();
  } else {
    f.template operator()<None>();
  }
}

/// Calls f with float, double or __nv_bfloat16.
template <class F>
void with_any_type(const Tensor& x, const F& f) {
  if (x.dtype == DType::kFloat64) {
    f.template operator()<double>();
  } else {
    with_type(x, f);
  }
}

}  // namespace

void activation_forward(Activation act, const Tensor& x, const Tensor& y, const Stream& stream) {
  check_operand(x, "x", x.shape, stream);
  check_operand(y, "y", x.shape, x.dtype, stream);
  with_type(x, [&]<class T>() {
    with_activation(act, [&]<class A>() {
      map<float>(x.numel(), stream, Value<A>{}, In<T>{pointer<T>(x)}, Out<T>{pointer<T>(y)});
    });
  });
}

void activation_backward(Activation act, const Tensor& x, const Tensor& dy, const Tensor& dx, const Stream& stream) {
  check_operand(x, "x", x.shape, stream);
  check_operand(dy, "dy", x.shape, x.dtype, stream);
  check_operand(dx, "dx", x.shape, x.dtype, stream);
  with_type(x, [&]<class T>() {
    with_activation(act, [&]<class A>() {
      map<float>(x.numel(), stream, Gradient<A>{}, In<T>{pointer<T>(x)}, In<T>{pointer<T>(dy)}, Out<T>{pointer<T>(dx)});
    });
  });
}

void glu_forward(Activation act, const Tensor& a, const Tensor& b, const Tensor& y, const Stream& stream) {
  check_operand(a, "a", a.shape, stream);
  check_operand(b, "b", a.shape, a.dtype, stream);
  check_operand(y, "y", a.shape, a.dtype, stream);
  with_type(a, [&]<class T>() {
    with_activation(act, [&]<class A>() {
      map<float>(a.numel(), stream, Glu<A>{}, In<T>{pointer<T>(a)}, In<T>{pointer<T>(b)}, Out<T>{pointer<T>(y)});
    });
  });
}

void glu_backward(Activation act, const Tensor& a, const Tensor& b, const Tensor& dy, const Tensor& da,
                  const Tensor& db, const Stream& stream) {
  check_operand(a, "a", a.shape, stream);
  check_operand(b, "b", a.shape, a.dtype, stream);
  check_operand(dy, "dy", a.shape, a.dtype, stream);
  check_operand(da, "da", a.shape, a.dtype, stream);
  check_operand(db, "db", a.shape, a.dtype, stream);
  with_type(a, [&]<class T>() {
    with_activation(act, [&]<class A>() {
      map<float>(a.numel(), stream, GluGradient<A>{}, In<T>{pointer<T>(a)}, In<T>{pointer<T>(b)}, In<T>{pointer<T>(dy)},
                 Out<T>{pointer<T>(da)}, Out<T>{pointer<T>(db)});
    });
  });
}

void log_gate_forward(const Tensor& x, double temperature, const Tensor& g, const Stream& stream) {
  check_operand(x, "x", x.shape, stream);
  check_operand(g, "g", x.shape, DType::kFloat32, stream);
  const LogGate op{static_cast<float>(1 / temperature)};
  with_type(x,
            [&]<class X>() { map<float>(x.numel(), stream, op, In<X>{pointer<X>(x)}, Out<float>{pointer<float>(g)}); });
}

void log_gate_backward(const Tensor& x, double temperature, const Tensor& dg, const Tensor& dx, const Stream& stream) {
  check_operand(x, "x", x.shape, stream);
  check_operand(dg, "dg", x.shape, DType::kFloat32, stream);
  check_operand(dx, "dx", x.shape, stream);
  const LogGateGradient op{static_cast<float>(1 / temperature)};
  with_type(x, [&]<class X>() {
    with_type(dx, [&]<class DX>() {
      map<float>(x.numel(), stream, op, In<X>{pointer<X>(x)}, In<float>{pointer<float>(dg)}, Out<DX>{pointer<DX>(dx)});
    });
  });
}

void add_scaled(const Tensor& x, double alpha, const Tensor& y, const Stream& stream) {
  check_operand(x, "x", x.shape, stream);
  check_operand(y, "y", x.shape, stream);
  const AddScaled op{static_cast<float>(alpha)};
  with_type(x, [&]<class X>() {
    with_type(y, [&]<class Y>() { map<float>(x.numel(), stream, op, In<X>{pointer<X>(x)}, InOut<Y>{pointer<Y>(y)}); });
  });
}

void convert(const Tensor& x, const Tensor& y, const Stream& stream) {
  check_operand(x, "x", x.shape, x.dtype, stream);
  check_operand(y, "y", x.shape, y.dtype, stream);
  with_any_type(x, [&]<class X>() {
    with_any_type(y, [&]<class Y>() {
      using V = std::conditional_t<std::is_same_v<X, double> && std::is_same_v<Y, double>, double, float>;
      map<V>(x.numel(), stream, Copy{}, In<X>{pointer<X>(x)}, Out<Y>{pointer<Y>(y)});
    });
  });
}

}  // namespace baton::cuda
