// Linearised relative positional encoding. Angles are formed and reduced in double from 64-bit positions.
#include <cmath>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"
#include "kernels/embedding.h"

// As in vector_math.h: the vector versions of libmvec, without -ffast-math.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
extern "C" {
__attribute__((simd("notinbranch"))) float sinf(float) noexcept;
__attribute__((simd("notinbranch"))) float cosf(float) noexcept;
__attribute__((simd("notinbranch"))) double sin(double) noexcept;
__attribute__((simd("notinbranch"))) double cos(double) noexcept;
}
#endif

namespace baton {
namespace {

constexpr int64_t kTokens = 64;  // tokens whose theta gradients are formed together

/// theta * position modulo 2 pi, in about [-pi, pi]. A double cannot hold the product of a large position (at 1e12 its
/// last bit is worth 1e-4 rad), so the product's rounding error is kept beside it, and 2 pi is subtracted in two parts.
inline double reduced_angle(double theta, double position) {
  constexpr double kTwoPi = 6.283185307179586232, kTwoPiRest = 2.4492935982947064e-16;
  const double product = theta * position, rest = std::fma(theta, position, -product);
  const double turns = std::nearbyint(product * (1 / kTwoPi));
  return std::fma(-turns, kTwoPiRest, std::fma(-turns, kTwoPi, product)) + rest;
}

/// Cosines and sines of all theta [n] at one position, kept until another position is asked for.
template <class T>
class Angles {
 public:
  Angles(const T* theta, int64_t n) : theta_(theta), angle_(n), cos_(n), sin_(n) {}

  void move_to(int64_t position) {
    if (valid_ && position == position_) return;
    valid_ = true;
    position_ = position;
    const int64_t n = static_cast<int64_t>(angle_.size());
    const double p = static_cast<double>(position);
    const T* theta = theta_;
    T *angle = angle_.data(), *c = cos_.data(), *s = sin_.data();
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) angle[i] = static_cast<T>(reduced_angle(theta[i], p));
      // Two loops: in one, the compiler joins the calls to one sincos, which has no vector form.
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) c[i] = std::cos(angle[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) s[i] = std::sin(angle[i]);
  }
  const T* cosines() const { return cos_.data(); }
  const T* sines() const { return sin_.data(); }

 private:
  const T* theta_;
  std::vector<T> angle_, cos_, sin_;
  int64_t position_ = 0;
  bool valid_ = false;
};

void check_lrpe(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& y) {
  CHECK(x.shape.rank() == 4, "lrpe takes x [B, T, H, K], got {}", x.shape.str());
  const int64_t B = x.dim(0), T = x.dim(1), H = x.dim(2), K = x.dim(3);
  check_tensor(theta, "theta", {H, 1, K}, x.dtype);
  check_tensor(positions, "positions", {B, T}, DType::kInt64);
  check_tensor(y, "y", {B, T, H, 2 * K}, x.dtype);
}

}  // namespace

void lrpe_forward(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& y,
                  const Stream& stream) {
  BATON_ON_CUDA(stream, lrpe_forward(x, theta, positions, y, stream));
  check_lrpe(x, theta, positions, y);
  const int64_t B = x.dim(0), tokens = x.dim(1), H = x.dim(2), K = x.dim(3);
  dispatch_float(x.dtype, [&]<class T>() {
    const T *px = x.as<T>(), *ptheta = theta.as<T>();
    const int64_t* position = positions.as<int64_t>();
    for_blocks(tokens, kTokens, [=, py = y.as<T>()](int64_t first, int64_t last) {
      Angles<T> angles(ptheta, H * K);
      for (int64_t t = first; t < last; ++t) {
        for (int64_t row = t; row < B * tokens; row += tokens) {  // rows of equal positions share their angles
          angles.move_to(position[row]);
          for (int64_t head = 0; head < H; ++head) {
            const T *c = angles.cosines() + head * K, *s = angles.sines() + head * K;
            const T* from = px + (row * H + head) * K;
            T* to = py + (row * H + head) * 2 * K;
#pragma omp simd
            for (int64_t i = 0; i < K; ++i) {
              to[i] = from[i] * c[i];
              to[K + i] = from[i] * s[i];
            }
          }
        }
      }
    });
  });
}

void lrpe_backward(const Tensor& x, const Tensor& theta, const Tensor& positions, const Tensor& dy, const Tensor& dx,
                   const Tensor& dtheta, const Stream& stream) {
  BATON_ON_CUDA(stream, lrpe_backward(x, theta, positions, dy, dx, dtheta, stream));
  check_lrpe(x, theta, positions, dy);
  check_tensor(dx, "dx", x.shape, x.dtype);
  check_tensor(dtheta, "dtheta", theta.shape, x.dtype);
  const int64_t B = x.dim(0), tokens = x.dim(1), H = x.dim(2), K = x.dim(3), blocks = num_blocks(tokens, kTokens);
  dispatch_float(x.dtype, [&]<class T>() {
    const T *px = x.as<T>(), *ptheta = theta.as<T>(), *pdy = dy.as<T>();
    const int64_t* position = positions.as<int64_t>();
    std::vector<double> parts(blocks * H * K);
    for_blocks(tokens, kTokens, [=, p = parts.data(), pdx = dx.as<T>()](int64_t first, int64_t last) {
      Angles<T> angles(ptheta, H * K);
      double* part = p + first / kTokens * H * K;
      for (int64_t t = first; t < last; ++t) {
        for (int64_t row = t; row < B * tokens; row += tokens) {
          angles.move_to(position[row]);
          const double at = static_cast<double>(position[row]);
          for (int64_t head = 0; head < H; ++head) {
            const T *c = angles.cosines() + head * K, *s = angles.sines() + head * K;
            const T *from = px + (row * H + head) * K, *dc = pdy + (row * H + head) * 2 * K, *ds = dc + K;
            T* to = pdx + (row * H + head) * K;
            double* sum = part + head * K;
#pragma omp simd
            for (int64_t i = 0; i < K; ++i) {
              to[i] = dc[i] * c[i] + ds[i] * s[i];
              sum[i] += at * static_cast<double>(from[i] * (ds[i] * c[i] - dc[i] * s[i]));
            }
          }
        }
      }
    });
    add_parts(parts.data(), blocks, H * K, dtheta.as<T>());
  });
}

}  // namespace baton
