// Elementwise operations and AdamW on a device against the CPU's in float64.
#include "kernels/adamw.h"
#include "tests/kernel/cuda_test.h"

namespace baton {
namespace {

constexpr Activation kActivations[] = {Activation::kNone, Activation::kSilu};
constexpr int64_t kSizes[] = {0, 1, 7, 8, 2048, 70001};

/// `n` elements from an odd place on, where nothing is aligned to 16 bytes.
Tensor odd_view(const OwnedTensor& x) { return x.tensor.rows(1, x.tensor.dim(0) - 1); }

TEST(CudaActivation, ForwardAndBackward) {
  for (DType dtype : gpu_dtypes())
    for (Activation act : kActivations)
      for (int64_t n : kSizes) {
        const Operand x = random_operand({n}, dtype, 1, 4.0), dy = random_operand({n}, dtype, 2);
        const Operand y = nan_operand({n}, dtype), dx = nan_operand({n}, dtype);
        activation_forward(act, x.host, y.host, Stream{});
        activation_forward(act, x.device, y.device, gpu_stream());
        expect_close(y, "y");
        activation_backward(act, x.host, dy.host, dx.host, Stream{});
        activation_backward(act, x.device, dy.device, dx.device, gpu_stream());
        expect_close(dx, "dx");
        activation_backward(act, x.device, dy.device, dy.device, gpu_stream());
        EXPECT_TRUE(same_device_bytes(dy.device, dx.device)) << "dx in place of dy";
        activation_forward(act, x.device, x.device, gpu_stream());
        EXPECT_TRUE(same_device_bytes(x.device, y.device)) << "y in place of x";
      }
}

TEST(CudaActivation, UnalignedIsTheSame) {
  for (DType dtype : gpu_dtypes()) {
    const Operand x = random_operand({70002}, dtype, 1, 4.0), y = nan_operand({70002}, dtype);
    const Operand whole = nan_operand({70002}, dtype);
    activation_forward(Activation::kSilu, x.device, whole.device, gpu_stream());
    activation_forward(Activation::kSilu, odd_view(x.device), odd_view(y.device), gpu_stream());
    EXPECT_TRUE(same_device_bytes(odd_view(y.device), odd_view(whole.device)));
    EXPECT_TRUE(std::isnan(device_doubles(y.device)[0])) << "written before its start";
  }
}

TEST(CudaActivation, ExtremeValues) {
  const OwnedTensor values = int_tensor<double>({5}, {-1000, -88, 0, 88, 1000});
  const Operand x(values, kF32), y = nan_operand({5}, kF32), g = nan_operand({5}, kF32);
  activation_forward(Activation::kSilu, x.host, y.host, Stream{});
  activation_forward(Activation::kSilu, x.device, y.device, gpu_stream());
  expect_close(y, "silu");
  log_gate_forward(x.host, 16, g.host, Stream{});
  log_gate_forward(x.device, 16, g.device, gpu_stream());
  expect_close(g, "log gate");
  EXPECT_EQ(device_doubles(g.device)[0], -1000.0 / 16);
}

TEST(CudaGlu, ForwardAndBackward) {
  for (DType dtype : gpu_dtypes())
    for (Activation act : kActivations)
      for (int64_t n : kSizes) {
        const Operand a = random_operand({n}, dtype, 1), b = random_operand({n}, dtype, 2);
        const Operand dy = random_operand({n}, dtype, 3), y = nan_operand({n}, dtype);
        const Operand da = nan_operand({n}, dtype), db = nan_operand({n}, dtype);
        glu_forward(act, a.host, b.host, y.host, Stream{});
        glu_forward(act, a.device, b.device, y.device, gpu_stream());
        expect_close(y, "y");
        glu_backward(act, a.host, b.host, dy.host, da.host, db.host, Stream{});
        glu_backward(act, a.device, b.device, dy.device, da.device, db.device, gpu_stream());
        expect_close(da, "da");
        expect_close(db, "db");
        glu_backward(act, a.device, b.device, dy.device, a.device, b.device, gpu_stream());
        EXPECT_TRUE(same_device_bytes(a.device, da.device) && same_device_bytes(b.device, db.device)) << "in place";
      }
}

TEST(CudaBias, ForwardAndGradient) {
  for (DType dtype : gpu_dtypes())
    for (const auto& [N, D] :
         std::vector<std::array<int64_t, 2>>{{0, 4}, {1, 1}, {37, 33}, {200, 64}, {3000, 1024}, {40, 2049}}) {
      const Operand x = random_operand({N, D}, dtype, 1), bias = random_operand({D}, kF32, 2);
      const Operand db = random_operand({D}, kF32, 3);
      expect_repeats(
          [&, N = N, D = D] {
            std::vector<OwnedTensor> out;
            out.push_back(to_device(to_host(db.device)));
            bias_gradient(x.device, out[0], gpu_stream());
            return out;
          },
          "db");
      bias_gradient(x.host, db.host, Stream{});
      bias_gradient(x.device, db.device, gpu_stream());
      expect_close(db, fmt::format("db {} x {}", N, D));
      add_bias(x.host, bias.host, Stream{});
      add_bias(x.device, bias.device, gpu_stream());
      expect_close(x, fmt::format("x {} x {}", N, D));
    }
}

TEST(CudaLogGate, ForwardAndBackward) {
  for (DType dtype : gpu_dtypes())
    for (DType gradient_dtype : gpu_dtypes())
      for (int64_t n : kSizes) {
        const Operand x = random_operand({n}, dtype, 1, 3.0), dg = random_operand({n}, kF32, 2);
        const Operand g = nan_operand({n}, kF32), dx = nan_operand({n}, gradient_dtype);
        log_gate_forward(x.host, 16, g.host, Stream{});
        log_gate_forward(x.device, 16, g.device, gpu_stream());
        expect_close(g, "g");
        log_gate_backward(x.host, 16, dg.host, dx.host, Stream{});
        log_gate_backward(x.device, 16, dg.device, dx.device, gpu_stream());
        expect_close(dx, "dx");
        if (gradient_dtype == kF32) {
          log_gate_backward(x.device, 16, dg.device, dg.device, gpu_stream());
          EXPECT_TRUE(same_device_bytes(dg.device, dx.device)) << "dx in place of dg";
        }
        if (dtype == kF32) {
          log_gate_forward(x.device, 16, x.device, gpu_stream());
          EXPECT_TRUE(same_device_bytes(x.device, g.device)) << "g in place of x";
        }
      }
}

TEST(CudaSums, AddScaledSquaresAndFinite) {
  for (DType dtype : gpu_dtypes())
    for (DType other : gpu_dtypes())
      for (int64_t n : {0, 1, 7, 70001, 3000000}) {
        const Operand x = random_operand({n}, dtype, 1), y = random_operand({n}, other, 2);
        const double expected = sum_of_squares(x.host, Stream{}), squares = sum_of_squares(x.device, gpu_stream());
        EXPECT_NEAR(squares, expected, 1e-12 * expected);
        EXPECT_EQ(squares, sum_of_squares(x.device, gpu_stream()));
        add_scaled(x.host, -0.3, y.host, Stream{});
        add_scaled(x.device, -0.3, y.device, gpu_stream());
        expect_close(y, "y");
        EXPECT_TRUE(all_finite(x.device, gpu_stream()));
      }
}

TEST(CudaSums, FindsEveryNumberThatIsNotFinite) {
  for (DType dtype : gpu_dtypes())
    for (double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::quiet_NaN()})
      for (int64_t place : {0, 12345, 70000}) {
        OwnedTensor values = random_tensor<double>({70001}, 1);
        values.tensor.as<double>()[place] = bad;
        EXPECT_FALSE(all_finite(Operand(values, dtype).device, gpu_stream())) << bad << " at " << place;
      }
}

OwnedTensor second_moments(int64_t n) {
  OwnedTensor v = random_tensor<double>({n}, 3);
  for (int64_t i = 0; i < n; ++i) v.tensor.as<double>()[i] *= v.tensor.as<double>()[i];
  return v;
}

TEST(CudaAdamW, SomeSteps) {
  for (int64_t n : kSizes) {
    const Operand w = random_operand({n}, kF32, 1), m = random_operand({n}, kF32, 2, 0.1);
    const Operand v(second_moments(n), kF32);
    for (int64_t step : {1, 2, 1000}) {
      const Operand gradient = random_operand({n}, kF32, 10 + static_cast<uint64_t>(step));
      const AdamWStep s{1e-3, 0.9, 0.95, 1e-8, 0.1, 0.7, step};
      adamw(s, w.host, gradient.host, m.host, v.host, Stream{});
      adamw(s, w.device, gradient.device, m.device, v.device, gpu_stream());
      expect_close(w, "w");
      expect_close(m, "m");
      expect_close(v, "v");
    }
  }
}

}  // namespace
}  // namespace baton
