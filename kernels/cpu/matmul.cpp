// Matrix products: tiles of c, each one call of OpenBLAS on one thread. OpenBLAS's own threads cut c by their number,
// and its bits change with the cut; tiles follow from the sizes alone.
#include "kernels/matmul.h"

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <climits>

#include "kernels/cpu/openblas_core.h"
#include "kernels/cpu/parallel.h"
#include "kernels/dispatch.h"

namespace baton {
namespace {

[[maybe_unused]] const bool kCoreChosen = choose_openblas_core();

// Wide tiles cost least packing; few rows are cut finer, so that the gradient of a small weight has work for threads.
constexpr int64_t kTileColumns = 512;
int64_t tile_rows(int64_t M) { return M <= 512 ? 128 : 256; }

CBLAS_TRANSPOSE cblas_trans(Trans trans) { return trans == Trans::kYes ? CblasTrans : CblasNoTrans; }

/// Sizes of one call and the leading dimensions of its operands.
struct Gemm {
  Trans trans_a, trans_b;
  int m, n, k, lda, ldb, ldc;
};

void gemm(const Gemm& g, const float* a, const float* b, float beta, float* c) {
  cblas_sgemm(CblasRowMajor, cblas_trans(g.trans_a), cblas_trans(g.trans_b), g.m, g.n, g.k, 1.0f, a, g.lda, b, g.ldb,
              beta, c, g.ldc);
}

void gemm(const Gemm& g, const double* a, const double* b, double beta, double* c) {
  cblas_dgemm(CblasRowMajor, cblas_trans(g.trans_a), cblas_trans(g.trans_b), g.m, g.n, g.k, 1.0, a, g.lda, b, g.ldb,
              beta, c, g.ldc);
}

/// The tile of c that begins at (row, column), as `g` but no larger than a tile.
template <class T>
void gemm_tile(Gemm g, int64_t M, int64_t N, int64_t row, int64_t column, const T* a, const T* b, T beta, T* c) {
  g.m = static_cast<int>(std::min(tile_rows(M), M - row));
  g.n = static_cast<int>(std::min(kTileColumns, N - column));
  const T* a_tile = a + (g.trans_a == Trans::kYes ? row : row * g.lda);
  const T* b_tile = b + (g.trans_b == Trans::kYes ? column * g.ldb : column);
  gemm(g, a_tile, b_tile, beta, c + row * g.ldc + column);
}

template <class T>
void tiled_gemm(const Gemm& g, int64_t M, int64_t N, const T* a, const T* b, T beta, T* c) {
  const int64_t rows = tile_rows(M);
  const int64_t across = num_blocks(N, kTileColumns), tiles = num_blocks(M, rows) * across;
  const int threads = omp_get_max_threads();
#pragma omp parallel num_threads(static_cast <int>(std::min <int64_t>(threads, tiles)))
  {
    omp_set_num_threads(1);  // of this task: OpenBLAS asks for it
#pragma omp for schedule(static)
    for (int64_t tile = 0; tile < tiles; ++tile)
      gemm_tile(g, M, N, tile / across * rows, tile % across * kTileColumns, a, b, beta, c);
  }
}

int blas_int(int64_t n) {
  CHECK(n <= INT_MAX, "a matrix dimension of {} does not fit the 32-bit interface of BLAS", n);
  return static_cast<int>(n);
}

}  // namespace

void matmul(const Tensor& a, Trans trans_a, const Tensor& b, Trans trans_b, const Tensor& c, double beta,
            const Stream& stream) {
  BATON_ON_CUDA(stream, matmul(a, trans_a, b, trans_b, c, beta, stream));
  CHECK(a.shape.rank() == 2 && b.shape.rank() == 2 && c.shape.rank() == 2,
        "matmul takes matrices, got a {}, b {}, c {}", a.shape.str(), b.shape.str(), c.shape.str());
  CHECK(beta == 0.0 || beta == 1.0, "matmul takes beta 0 or 1, got {}", beta);
  const int64_t m = c.dim(0), n = c.dim(1), k = a.dim(trans_a == Trans::kYes ? 0 : 1);
  check_tensor(a, "a", trans_a == Trans::kYes ? Shape{k, m} : Shape{m, k}, c.dtype);
  check_tensor(b, "b", trans_b == Trans::kYes ? Shape{n, k} : Shape{k, n}, c.dtype);
  if (m == 0 || n == 0) return;
  dispatch_float(c.dtype, [&]<class T>() {
    if (k == 0) {
      if (beta == 0.0) std::fill_n(c.as<T>(), c.numel(), T{0});
      return;
    }
    const Gemm g{trans_a, trans_b, 0, 0, blas_int(k), blas_int(a.dim(1)), blas_int(b.dim(1)), blas_int(n)};
    tiled_gemm(g, m, n, a.as<T>(), b.as<T>(), static_cast<T>(beta), c.as<T>());
  });
}

}  // namespace baton
