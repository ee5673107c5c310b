// Row norms on a device against the CPU's in float64, every mixture of dtypes.
#include "kernels/norm.h"
#include "tests/kernel/cuda_test.h"

namespace baton {
namespace {

constexpr NormKind kKinds[] = {NormKind::kRms, NormKind::kSimpleRms, NormKind::kLayer};
constexpr double kEps = 1e-5;

/// Rows that a warp takes and rows that a block takes, odd ones, and a model's.
const std::vector<std::array<int64_t, 2>> kShapes{{0, 8},   {1, 33},    {5, 7},      {130, 33},   {1000, 256},
                                                  {3, 512}, {65, 2049}, {300, 2048}, {1500, 520}, {2, 10000}};

Operand vector_of(bool present, int64_t D, uint64_t stream) {
  return present ? random_operand({D}, kF32, stream) : Operand();
}

std::string name_of(NormKind kind, int64_t N, int64_t D) { return fmt::format("{} {} x {}", to_string(kind), N, D); }

TEST(CudaNorm, Forward) {
  for (NormKind kind : kKinds)
    for (const auto& [N, D] : kShapes)
      for (DType from : gpu_dtypes())
        for (DType to : gpu_dtypes()) {
          const Operand x = random_operand({N, D}, from, 1, 3.0);
          const Operand w = vector_of(kind != NormKind::kSimpleRms, D, 2),
                        b = vector_of(kind == NormKind::kLayer, D, 3);
          const Operand y = nan_operand({N, D}, to), stats = nan_operand({N, 2}, kF32);
          norm_forward(kind, x.host, w.host, b.host, kEps, y.host, stats.host, Stream{});
          norm_forward(kind, x.device, w.device, b.device, kEps, y.device, stats.device, gpu_stream());
          expect_close(y, name_of(kind, N, D));
          expect_close(stats, name_of(kind, N, D) + " stats");
          if (from != to) continue;
          norm_forward(kind, x.device, w.device, b.device, kEps, x.device, stats.device, gpu_stream());
          EXPECT_TRUE(same_device_bytes(x.device, y.device)) << "y in place of x";
        }
}

TEST(CudaNorm, LargeMean) {
  OwnedTensor values = random_tensor<double>({3, 1000}, 1);
  for (int64_t i = 0; i < 3000; ++i) values.tensor.as<double>()[i] += 100;
  const Operand x(values, kF32), w = random_operand({1000}, kF32, 2), b = random_operand({1000}, kF32, 3);
  const Operand y = nan_operand({3, 1000}, kF32), stats = nan_operand({3, 2}, kF32);
  norm_forward(NormKind::kLayer, x.host, w.host, b.host, kEps, y.host, stats.host, Stream{});
  norm_forward(NormKind::kLayer, x.device, w.device, b.device, kEps, y.device, stats.device, gpu_stream());
  expect_close(y, "y");
}

struct Backward {
  Backward(NormKind norm, int64_t N, int64_t D, DType x_dtype, DType dy_dtype)
      : kind(norm),
        weighted(norm != NormKind::kSimpleRms),
        layer(norm == NormKind::kLayer),
        x(random_operand({N, D}, x_dtype, 1, 2.0)),
        dy(random_operand({N, D}, dy_dtype, 2)),
        w(vector_of(weighted, D, 3)),
        stats(nan_operand({N, 2}, kF32)) {
    const Operand y = nan_operand({N, D}, kF32), b = vector_of(layer, D, 4);
    norm_forward(kind, x.host, w.host, b.host, kEps, y.host, stats.host, Stream{});
    norm_forward(kind, x.device, w.device, b.device, kEps, y.device, stats.device, gpu_stream());
  }
  NormKind kind;
  bool weighted, layer;
  Operand x, dy, w, stats;
};

TEST(CudaNorm, Backward) {
  for (NormKind kind : kKinds)
    for (const auto& [N, D] : kShapes)
      for (DType x_dtype : gpu_dtypes())
        for (DType dy_dtype : gpu_dtypes()) {
          const Backward c(kind, N, D, x_dtype, dy_dtype);
          for (DType dx_dtype : gpu_dtypes())
            for (double beta : {0.0, 1.0}) {
              const Operand dx = beta == 0 ? nan_operand({N, D}, dx_dtype) : random_operand({N, D}, dx_dtype, 5);
              const Operand dw = vector_of(c.weighted, D, 6), db = vector_of(c.layer, D, 7);
              norm_backward(kind, c.x.host, c.w.host, c.stats.host, c.dy.host, dx.host, beta, dw.host, db.host,
                            Stream{});
              norm_backward(kind, c.x.device, c.w.device, c.stats.device, c.dy.device, dx.device, beta, dw.device,
                            db.device, gpu_stream());
              expect_close(dx, name_of(kind, N, D) + " dx");
              if (c.weighted) expect_close(dw, name_of(kind, N, D) + " dw");
              if (c.layer) expect_close(db, name_of(kind, N, D) + " db");
            }
        }
}

TEST(CudaNorm, Repeats) {
  for (const auto& [N, D] : kShapes) {
    const Backward c(NormKind::kLayer, N, D, kBF16, kBF16);
    expect_repeats(
        [&, N = N, D = D] {
          std::vector<OwnedTensor> out;
          out.push_back(std::move(nan_operand({N, D}, kBF16).device));
          out.push_back(std::move(random_operand({D}, kF32, 6).device));
          out.push_back(std::move(random_operand({D}, kF32, 7).device));
          norm_backward(c.kind, c.x.device, c.w.device, c.stats.device, c.dy.device, out[0], 0, out[1], out[2],
                        gpu_stream());
          return out;
        },
        name_of(c.kind, N, D));
  }
}

TEST(CudaNormErrors, DtypesAndDevices) {
  const OwnedTensor x({4, 8}, kF32, kGpu), stats({4, 2}, kF32, kGpu), w({8}, kBF16, kGpu), host({4, 8}, kF32);
  EXPECT_THROW(norm_forward(NormKind::kRms, x, w, {}, kEps, x, stats, gpu_stream()), Error);
  EXPECT_THROW(norm_forward(NormKind::kSimpleRms, x, {}, {}, kEps, host, stats, gpu_stream()), Error);
  EXPECT_THROW(norm_forward(NormKind::kRms, x, {}, {}, kEps, x, stats, gpu_stream()), Error);
}

}  // namespace
}  // namespace baton
