// Row norms. Statistics of a row are summed in double; weight gradients over blocks of rows, then over the blocks.
#include "kernels/norm.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"

namespace baton {
namespace {

constexpr NormKind kAllKinds[] = {NormKind::kRms, NormKind::kSimpleRms, NormKind::kLayer};

template <class T, NormKind kKind>
void forward_row(const T* x, const T* w, const T* b, int64_t D, double eps, T* y, T* stats) {
  double mean = 0, square = 0;
  if constexpr (kKind == NormKind::kLayer) {
#pragma omp simd reduction(+ : mean)
    for (int64_t j = 0; j < D; ++j) mean += x[j];
    mean /= static_cast<double>(D);
  }
#pragma omp simd reduction(+ : square)
  for (int64_t j = 0; j < D; ++j) square += (x[j] - mean) * (x[j] - mean);
  const T shift = static_cast<T>(mean);
  const T rstd = static_cast<T>(1 / std::sqrt(square / static_cast<double>(D) + eps));
  stats[0] = shift;
  stats[1] = rstd;
#pragma omp simd
  for (int64_t j = 0; j < D; ++j) {
    if constexpr (kKind == NormKind::kRms) y[j] = x[j] * rstd * w[j];
    if constexpr (kKind == NormKind::kSimpleRms) y[j] = x[j] * rstd;
    if constexpr (kKind == NormKind::kLayer) y[j] = (x[j] - shift) * rstd * w[j] + b[j];
  }
}

// With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - n mean(g n)); dw += dy n; db += dy.
// mean(g) is there for LayerNorm only.
template <class T, NormKind kKind>
void backward_row(const T* x, const T* w, const T* stats, const T* dy, int64_t D, T beta, T* dx, T* dw, T* db) {
  const T mean = stats[0], rstd = stats[1];
  const auto normal = [=](int64_t j) { return kKind == NormKind::kLayer ? (x[j] - mean) * rstd : x[j] * rstd; };
  const auto gradient = [=](int64_t j) { return kKind == NormKind::kSimpleRms ? dy[j] : dy[j] * w[j]; };
  double sum_g = 0, sum_gn = 0;
#pragma omp simd reduction(+ : sum_g, sum_gn)
  for (int64_t j = 0; j < D; ++j) {
    const double g = gradient(j);
    if constexpr (kKind == NormKind::kLayer) sum_g += g;
    sum_gn += g * static_cast<double>(normal(j));
  }
  const T mean_g = static_cast<T>(sum_g / static_cast<double>(D));
  const T mean_gn = static_cast<T>(sum_gn / static_cast<double>(D));
  if constexpr (kKind != NormKind::kSimpleRms) {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j) dw[j] += dy[j] * normal(j);
  }
  if constexpr (kKind == NormKind::kLayer) {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j) db[j] += dy[j];
  }
  const auto change = [=](int64_t j) { return rstd * (gradient(j) - mean_g - normal(j) * mean_gn); };
  if (beta == T{0}) {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j) dx[j] = change(j);
  } else {
#pragma omp simd
    for (int64_t j = 0; j < D; ++j) dx[j] += change(j);
  }
}

template <class T, NormKind kKind>
void forward(const Tensor& x, const Tensor& w, const Tensor& b, double eps, const Tensor& y, const Tensor& stats) {
  const int64_t N = x.dim(0), D = x.dim(1);
  const T* px = x.as<T>();
  const T* pw = kKind == NormKind::kSimpleRms ? nullptr : w.as<T>();
  const T* pb = kKind == NormKind::kLayer ? b.as<T>() : nullptr;
  T* py = y.as<T>();
  T* ps = stats.as<T>();
  for_blocks(N, kRowBlock, [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) forward_row<T, kKind>(px + i * D, pw, pb, D, eps, py + i * D, ps + 2 * i);
  });
}

template <class T, NormKind kKind>
void backward(const Tensor& x, const Tensor& w, const Tensor& stats, const Tensor& dy, const Tensor& dx, double beta,
              const Tensor& dw, const Tensor& db) {
  const int64_t N = x.dim(0), D = x.dim(1), blocks = num_blocks(N, kRowBlock);
  const T *px = x.as<T>(), *ps = stats.as<T>(), *pdy = dy.as<T>();
  const T* pw = kKind == NormKind::kSimpleRms ? nullptr : w.as<T>();
  T* pdx = dx.as<T>();
  std::vector<T> dw_parts(kKind == NormKind::kSimpleRms ? 0 : blocks * D);
  std::vector<T> db_parts(kKind == NormKind::kLayer ? blocks * D : 0);
  T *pdw = dw_parts.data(), *pdb = db_parts.data();
  for_blocks(N, kRowBlock, [=](int64_t first, int64_t last) {
    const int64_t part = first / kRowBlock * D;
    for (int64_t i = first; i < last; ++i)
      backward_row<T, kKind>(px + i * D, pw, ps + 2 * i, pdy + i * D, D, static_cast<T>(beta), pdx + i * D,
                             kKind == NormKind::kSimpleRms ? nullptr : pdw + part,
                             kKind == NormKind::kLayer ? pdb + part : nullptr);
  });
  if constexpr (kKind != NormKind::kSimpleRms) add_parts(pdw, blocks, D, dw.as<T>());
  if constexpr (kKind == NormKind::kLayer) add_parts(pdb, blocks, D, db.as<T>());
}

/// Checks a vector [D] that only some kinds have.
void check_vector(const Tensor& x, const char* name, bool expected, int64_t D, NormKind kind, DType dtype) {
  CHECK(x.defined() == expected, "{} {} {}", to_string(kind), expected ? "needs" : "takes no", name);
  if (expected) check_tensor(x, name, {D}, dtype);
}

void check_rows(const Tensor& x) {
  CHECK(x.shape.rank() == 2 && x.dim(1) > 0, "a norm takes rows [N, D] with D > 0, got {}", x.shape.str());
}

}  // namespace

const char* to_string(NormKind kind) {
  switch (kind) {
    case NormKind::kRms:
      return "rmsnorm";
    case NormKind::kSimpleRms:
      return "simple_rmsnorm";
    case NormKind::kLayer:
      return "layernorm";
  }
  return "unknown";
}

NormKind parse_norm_kind(const std::string& word) {
  for (NormKind kind : kAllKinds)
    if (word == to_string(kind)) return kind;
  throw Error(ExitCode::kInput,
              fmt::format("model.norm is {}, but must be one of rmsnorm, simple_rmsnorm, layernorm", word));
}

void norm_forward(NormKind kind, const Tensor& x, const Tensor& w, const Tensor& b, double eps, const Tensor& y,
                  const Tensor& stats, const Stream& stream) {
  BATON_ON_CUDA(stream, norm_forward(kind, x, w, b, eps, y, stats, stream));
  check_rows(x);
  check_vector(w, "w", kind != NormKind::kSimpleRms, x.dim(1), kind, x.dtype);
  check_vector(b, "b", kind == NormKind::kLayer, x.dim(1), kind, x.dtype);
  check_tensor(y, "y", x.shape, x.dtype);
  check_tensor(stats, "stats", {x.dim(0), 2}, x.dtype);
  dispatch_float(x.dtype, [&]<class T>() {
    switch (kind) {
      case NormKind::kRms:
        return forward<T, NormKind::kRms>(x, w, b, eps, y, stats);
      case NormKind::kSimpleRms:
        return forward<T, NormKind::kSimpleRms>(x, w, b, eps, y, stats);
      case NormKind::kLayer:
        return forward<T, NormKind::kLayer>(x, w, b, eps, y, stats);
    }
  });
}

void norm_backward(NormKind kind, const Tensor& x, const Tensor& w, const Tensor& stats, const Tensor& dy,
                   const Tensor& dx, double beta, const Tensor& dw, const Tensor& db, const Stream& stream) {
  BATON_ON_CUDA(stream, norm_backward(kind, x, w, stats, dy, dx, beta, dw, db, stream));
  check_rows(x);
  CHECK(beta == 0.0 || beta == 1.0, "norm_backward takes beta 0 or 1, got {}", beta);
  check_vector(w, "w", kind != NormKind::kSimpleRms, x.dim(1), kind, x.dtype);
  check_vector(dw, "dw", kind != NormKind::kSimpleRms, x.dim(1), kind, x.dtype);
  check_vector(db, "db", kind == NormKind::kLayer, x.dim(1), kind, x.dtype);
  check_tensor(stats, "stats", {x.dim(0), 2}, x.dtype);
  check_tensor(dy, "dy", x.shape, x.dtype);
  check_tensor(dx, "dx", x.shape, x.dtype);
  dispatch_float(x.dtype, [&]<class T>() {
    switch (kind) {
      case NormKind::kRms:
        return backward<T, NormKind::kRms>(x, w, stats, dy, dx, beta, dw, db);
      case NormKind::kSimpleRms:
        return backward<T, NormKind::kSimpleRms>(x, w, stats, dy, dx, beta, dw, db);
      case NormKind::kLayer:
        return backward<T, NormKind::kLayer>(x, w, stats, dy, dx, beta, dw, db);
    }
  });
}

}  // namespace baton
