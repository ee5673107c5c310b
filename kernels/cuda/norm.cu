// Row norms, with n = (x - mean) rstd (mean 0 but for LayerNorm) and g = dy w:
//
//   forward    y = n w + b, rstd = 1 / sqrt(mean(n^2 before scaling) + eps)
//   backward   dx = rstd (g - mean(g) - n mean(g n)), mean(g) for LayerNorm only;  dw += dy n;  db += dy
//
// x, y, dx, dy [N, D] float32 or bfloat16, each its own; w, b, dw, db [D] and stats [N, 2] (mean, rstd) float32. Row
// sums run in double.
//
// Threads: 128 a block; a warp a row up to D = 512, else a block a row. A row is read again for every pass: it is in
// L1. Backward: a block takes one part of the rows (rows.cuh); a thread sums its own columns of dw and db in shared
// memory, 4 bytes a column each, once for each warp where warps take rows. Forward: 32 bytes of shared memory.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/vector.cuh"

namespace baton::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kWarpRow = 512;  // the longest row a warp takes

/// Threads of one row: a warp or the block.
template <int kGroup>
struct RowThreads {
  double* scratch;
  static constexpr int kRows = kThreads / kGroup;  // rows a block has in hand

  __device__ int lane() const { return threadIdx.x % kGroup; }
  __device__ int row() const { return threadIdx.x / kGroup; }
  __device__ double sum(double x) const {
    if constexpr (kGroup == 32) return warp_sum(x);
    return block_sum<kThreads>(x, scratch);
  }
  /// f(first column, columns, whole, pass) for the thread's columns.
  template <class F>
  __device__ void for_columns(int64_t D, bool is_aligned, const F& f) const {
    int pass = 0;
    for (int64_t j = lane() * kWidth; j < D; j += kGroup * kWidth, ++pass) {
      const int64_t count = D - j < kWidth ? D - j : kWidth;
      f(j, count, is_aligned && count == kWidth, pass);
    }
  }
};

/// v = w[j ...], or ones without a weight.
__device__ __forceinline__ void load_weight(const float* w, int64_t j, int64_t count, bool whole, float (&v)[kWidth]) {
  if (w != nullptr) {
    load(w + j, count, whole, v);
  } else {
#pragma unroll
    for (float& value : v) value = 1.0F;
  }
}

struct ForwardArguments {
  int64_t N, D;
  bool layer, is_aligned;
  double eps;
  const float *w, *b;
  float* stats;
};

template <int kGroup, class X, class Y>
__global__ void __launch_bounds__(kThreads) forward_kernel(ForwardArguments a, const X* x, Y* y) {
  __shared__ double scratch[kThreads / 32];
  const RowThreads<kGroup> threads{scratch};
  const int64_t row = int64_t{blockIdx.x} * threads.kRows + threads.row();
  if (row >= a.N) return;
  x += row * a.D;
  y += row * a.D;
  float v[kWidth];
  double sum = 0;
  if (a.layer) {
    threads.for_columns(a.D, a.is_aligned, [&](int64_t j, int64_t count, bool whole, int) {
      load(x + j, count, whole, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += v[i];
    });
    sum = threads.sum(sum);
  }
  const double mean = sum / static_cast<double>(a.D);
  double square = 0;
  threads.for_columns(a.D, a.is_aligned, [&](int64_t j, int64_t count, bool whole, int) {
    load(x + j, count, whole, v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      if (i < count) square += (v[i] - mean) * (v[i] - mean);
  });
  square = threads.sum(square);
  const auto shift = static_cast<float>(mean);
  const auto rstd = static_cast<float>(1 / sqrt(square / static_cast<double>(a.D) + a.eps));
  if (threads.lane() == 0) {
    a.stats[2 * row] = shift;
    a.stats[2 * row + 1] = rstd;
  }
  threads.for_columns(a.D, a.is_aligned, [&](int64_t j, int64_t count, bool whole, int) {
    float w[kWidth], b[kWidth] = {};
    load(x + j, count, whole, v);
    load_weight(a.w, j, count, whole, w);
    if (a.b != nullptr) load(a.b + j, count, whole, b);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = (v[i] - shift) * rstd * w[i] + b[i];
    store(y + j, count, whole, v);
  });
}

struct BackwardArguments {
  int64_t N, D;
  bool layer, is_aligned, accumulate;
  const float *w, *stats;
  float *dw_parts, *db_parts;  // [parts, D] or null
};

/// A block's sums of columns in shared memory: element i of pass p of lane l of a group at ((p 8 + i) kGroup + l), so
/// that a warp's accesses lie side by side.
template <int kGroup>
struct ColumnSums {
  float* data;     // [rows in hand, 1 or 2, columns]
  int64_t padded;  // columns

  static __host__ __device__ int64_t padded_columns(int64_t D) {
    return (D + kGroup * kWidth - 1) / (kGroup * kWidth) * (kGroup * kWidth);
  }
  __device__ float* place(int vectors, int row, int vector, int lane) const {
    return data + (row * vectors + vector) * padded + lane;
  }
  static __device__ int64_t place_of_column(int64_t j) {
    const int64_t lane = j / kWidth % kGroup, pass = j / (kWidth * kGroup);
    return (pass * kWidth + j % kWidth) * kGroup + lane;
  }
  /// parts[j] = the sum over the rows in hand, in their order.
  __device__ void write(int vectors, int vector, int64_t D, float* parts) const {
    for (int64_t j = threadIdx.x; j < D; j += kThreads) {
      const float* at = data + vector * padded + place_of_column(j);
      float total = at[0];
      for (int row = 1; row < kThreads / kGroup; ++row) total += at[row * vectors * padded];
      parts[j] = total;
    }
  }
};

template <int kGroup, class X, class DY, class DX>
__device__ void backward_row(const BackwardArguments& a, const RowThreads<kGroup>& threads, int64_t row, const X* x,
                             const DY* dy, DX* dx, float* dw, float* db) {
  const float mean = a.stats[2 * row], rstd = a.stats[2 * row + 1];
  float n[kWidth], g[kWidth], w[kWidth];
  double sum_g = 0, sum_gn = 0;
  threads.for_columns(a.D, a.is_aligned, [&](int64_t j, int64_t count, bool whole, int pass) {
    load(x + j, count, whole, n);
    load(dy + j, count, whole, g);
    load_weight(a.w, j, count, whole, w);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      n[i] = (n[i] - mean) * rstd;
      if (dw != nullptr) dw[(pass * kWidth + i) * kGroup] += g[i] * n[i];
      if (db != nullptr) db[(pass * kWidth + i) * kGroup] += g[i];
      g[i] *= w[i];
      sum_g += g[i];
      sum_gn += static_cast<double>(g[i]) * n[i];
    }
  });
  const auto mean_g = a.layer ? static_cast<float>(threads.sum(sum_g) / static_cast<double>(a.D)) : 0.0F;
  const auto mean_gn = static_cast<float>(threads.sum(sum_gn) / static_cast<double>(a.D));
  threads.for_columns(a.D, a.is_aligned, [&](int64_t j, int64_t count, bool whole, int) {
    float before[kWidth] = {};
    load(x + j, count, whole, n);
    load(dy + j, count, whole, g);
    load_weight(a.w, j, count, whole, w);
    if (a.accumulate) load(dx + j, count, whole, before);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) g[i] = before[i] + rstd * (g[i] * w[i] - mean_g - (n[i] - mean) * rstd * mean_gn);
    store(dx + j, count, whole, g);
  });
}

template <int kGroup, class X, class DY, class DX>
__global__ void __launch_bounds__(kThreads) backward_kernel(BackwardArguments a, const X* x, const DY* dy, DX* dx) {
  extern __shared__ float columns[];
  __shared__ double scratch[kThreads / 32];
  const RowThreads<kGroup> threads{scratch};
  const ColumnSums<kGroup> sums{columns, ColumnSums<kGroup>::padded_columns(a.D)};
  const int vectors = (a.dw_parts != nullptr) + (a.db_parts != nullptr);
  for (int64_t i = threadIdx.x; i < threads.kRows * vectors * sums.padded; i += kThreads) columns[i] = 0;
  __syncthreads();
  float* dw = a.dw_parts == nullptr ? nullptr : sums.place(vectors, threads.row(), 0, threads.lane());
  float* db = a.db_parts == nullptr ? nullptr : sums.place(vectors, threads.row(), 1, threads.lane());
  const int64_t last = first_row(blockIdx.x + 1, gridDim.x, a.N);
  for (int64_t row = first_row(blockIdx.x, gridDim.x, a.N) + threads.row(); row < last; row += threads.kRows)
    backward_row(a, threads, row, x + row * a.D, dy + row * a.D, dx + row * a.D, dw, db);
  __syncthreads();
  if (dw != nullptr) sums.write(vectors, 0, a.D, a.dw_parts + blockIdx.x * a.D);
  if (db != nullptr) sums.write(vectors, 1, a.D, a.db_parts + blockIdx.x * a.D);
}

template <int kGroup, class X, class DY, class DX>
void backward(const BackwardArguments& a, int64_t parts, const Tensor& x, const Tensor& dy, const Tensor& dx,
              const Stream& stream) {
  const int vectors = (a.dw_parts != nullptr) + (a.db_parts != nullptr);
  const int64_t shared_bytes = ColumnSums<kGroup>::padded_columns(a.D) * vectors * RowThreads<kGroup>::kRows * 4;
  const auto kernel = backward_kernel<kGroup, X, DY, DX>;
  if (shared_bytes > (48 << 10)) {
    const auto status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    CHECK(status == cudaSuccess, "a norm of {} columns needs {} bytes of shared memory a block, more than there is",
          a.D, shared_bytes);
  }
  kernel<<<static_cast<unsigned>(parts), kThreads, static_cast<size_t>(shared_bytes), handle_of(stream)>>>(
      a, pointer<const X>(x), pointer<const DY>(dy), pointer<DX>(dx));
  CUDA_CHECK(cudaGetLastError());
}

/// Checks a vector [D] that only some kinds have; its pointer or null.
float* vector_of(const Tensor& x, const char* name, bool expected, int64_t D, NormKind kind, const Stream& stream) {
  CHECK(x.defined() == expected, "{} {} {}", to_string(kind), expected ? "needs" : "takes no", name);
  if (!expected) return nullptr;
  check_operand(x, name, {D}, DType::kFloat32, stream);
  return pointer<float>(x);
}

void check_rows(const Tensor& x, const Tensor& stats, const Stream& stream) {
  CHECK(x.shape.rank() == 2 && x.dim(1) > 0, "a norm takes rows [N, D] with D > 0, got {}", x.shape.str());
  check_operand(x, "x", x.shape, stream);
  check_operand(stats, "stats", {x.dim(0), 2}, DType::kFloat32, stream);
}

}  // namespace

void norm_forward(NormKind kind, const Tensor& x, const Tensor& w, const Tensor& b, double eps, const Tensor& y,
                  const Tensor& stats, const Stream& stream) {
  check_rows(x, stats, stream);
  check_operand(y, "y", x.shape, stream);
  const int64_t N = x.dim(0), D = x.dim(1);
  const bool layer = kind == NormKind::kLayer;
  ForwardArguments a{N, D, layer, false, eps, nullptr, nullptr, pointer<float>(stats)};
  a.w = vector_of(w, "w", kind != NormKind::kSimpleRms, D, kind, stream);
  a.b = vector_of(b, "b", layer, D, kind, stream);
  a.is_aligned = D % kWidth == 0 && aligned(static_cast<char*>(x.data), static_cast<char*>(y.data), a.w, a.b);
  if (N == 0) return;
  with_type(x, [&]<class X>() {
    with_type(y, [&]<class Y>() {
      if (D <= kWarpRow) {
        forward_kernel<32, X, Y>
            <<<num_blocks(N, kThreads / 32), kThreads, 0, handle_of(stream)>>>(a, pointer<const X>(x), pointer<Y>(y));
      } else {
        forward_kernel<kThreads, X, Y>
            <<<num_blocks(N, 1), kThreads, 0, handle_of(stream)>>>(a, pointer<const X>(x), pointer<Y>(y));
      }
    });
  });
  CUDA_CHECK(cudaGetLastError());
}

void norm_backward(NormKind kind, const Tensor& x, const Tensor& w, const Tensor& stats, const Tensor& dy,
                   const Tensor& dx, double beta, const Tensor& dw, const Tensor& db, const Stream& stream) {
  check_rows(x, stats, stream);
  CHECK(beta == 0.0 || beta == 1.0, "norm_backward takes beta 0 or 1, got {}", beta);
  check_operand(dy, "dy", x.shape, stream);
  check_operand(dx, "dx", x.shape, stream);
  const int64_t N = x.dim(0), D = x.dim(1);
  const bool layer = kind == NormKind::kLayer, weighted = kind != NormKind::kSimpleRms;
  float* pdw = vector_of(dw, "dw", weighted, D, kind, stream);
  float* pdb = vector_of(db, "db", layer, D, kind, stream);
  BackwardArguments a{N, D, layer, false, beta == 1.0, nullptr, pointer<const float>(stats), nullptr, nullptr};
  a.w = vector_of(w, "w", weighted, D, kind, stream);
  a.is_aligned = D % kWidth == 0 &&
                 aligned(static_cast<char*>(x.data), static_cast<char*>(dy.data), static_cast<char*>(dx.data), a.w);
  if (N == 0) return;
  const int64_t parts = num_parts(N, kThreads / 32, 2 * D * static_cast<int64_t>(sizeof(float)));
  auto* scratch = static_cast<float*>(workspace(stream));
  if (weighted) a.dw_parts = scratch;
  if (layer) a.db_parts = scratch + parts * D;
  with_type(x, [&]<class X>() {
    with_type(dy, [&]<class DY>() {
      with_type(dx, [&]<class DX>() {
        if (D <= kWarpRow) {
          backward<32, X, DY, DX>(a, parts, x, dy, dx, stream);
        } else {
          backward<kThreads, X, DY, DX>(a, parts, x, dy, dx, stream);
        }
      });
    });
  });
  if (weighted) add_parts(a.dw_parts, parts, D, pdw, stream);
  if (layer) add_parts(a.db_parts, parts, D, pdb, stream);
}

}  // namespace baton::cuda
