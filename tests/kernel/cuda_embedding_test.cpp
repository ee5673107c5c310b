// Embedding, LRPE and cross-entropy on a device against the CPU's in float64.
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "tests/kernel/cuda_test.h"

namespace baton {
namespace {

struct IntOperand {
  explicit IntOperand(OwnedTensor values) : host(std::move(values)), device(to_device(host)) {}
  OwnedTensor host, device;
};

/// Tokens, a few of them much more frequent than others.
IntOperand tokens_of(int64_t N, int64_t vocab) {
  OwnedTensor tokens({N}, DType::kInt32);
  for (int64_t i = 0; i < N; ++i)
    tokens.tensor.as<int32_t>()[i] = i % 3 == 0 ? 0 : static_cast<int32_t>(random_bits(3, 1, i) % vocab);
  return IntOperand(std::move(tokens));
}

struct EmbeddingCase {
  int64_t N, vocab, D;
};
/// The last: more tokens than one turn of the backward takes.
constexpr EmbeddingCase kEmbeddings[] = {{0, 5, 4}, {1, 1, 1}, {37, 11, 33}, {3000, 700, 264}, {40000, 50, 40}};

TEST(CudaEmbedding, ForwardAndBackward) {
  for (const auto& [N, vocab, D] : kEmbeddings)
    for (DType w_dtype : gpu_dtypes())
      for (DType y_dtype : gpu_dtypes()) {
        const IntOperand tokens = tokens_of(N, vocab);
        const Operand w = random_operand({vocab, D}, w_dtype, 1), y = nan_operand({N, D}, y_dtype);
        embedding_forward(tokens.host, w.host, 1.7, y.host, Stream{});
        embedding_forward(tokens.device, w.device, 1.7, y.device, gpu_stream());
        expect_close(y, fmt::format("y {} of {} x {}", N, vocab, D));
        const Operand dy = random_operand({N, D}, y_dtype, 2), dw = random_operand({vocab, D}, kF32, 3);
        const OwnedTensor again = to_device(to_host(dw.device));
        embedding_backward(tokens.host, dy.host, 1.7, dw.host, Stream{});
        embedding_backward(tokens.device, dy.device, 1.7, dw.device, gpu_stream());
        expect_close(dw, fmt::format("dw {} of {} x {}", N, vocab, D));
        embedding_backward(tokens.device, dy.device, 1.7, again, gpu_stream());
        EXPECT_TRUE(same_device_bytes(again, dw.device)) << "differs between two runs";
      }
}

TEST(CudaEmbedding, ATokenOutsideTheVocabularyIsSeen) {
  const OwnedTensor tokens = to_device(int_tensor<int32_t>({3}, {-1, 1, 5}));
  const Operand w = random_operand({5, 8}, kF32, 1), y = nan_operand({3, 8}, kF32);
  embedding_forward(tokens, w.device, 1, y.device, gpu_stream());
  EXPECT_FALSE(all_finite(y.device.tensor.rows(0, 1), gpu_stream()));
  EXPECT_TRUE(all_finite(y.device.tensor.rows(1, 1), gpu_stream()));
  EXPECT_FALSE(all_finite(y.device.tensor.rows(2, 1), gpu_stream()));
  const OwnedTensor dw = to_device(to_host(w.device));
  embedding_backward(tokens, random_operand({3, 8}, kF32, 2).device, 1, dw, gpu_stream());
  EXPECT_TRUE(same_device_bytes(dw.tensor.rows(0, 1), w.device.tensor.rows(0, 1)));
  EXPECT_TRUE(same_device_bytes(dw.tensor.rows(2, 3), w.device.tensor.rows(2, 3)));
  EXPECT_FALSE(same_device_bytes(dw, w.device));
}

struct LrpeCase {
  int64_t B, tokens, H, K, offset;
};
constexpr LrpeCase kLrpe[] = {{1, 0, 1, 4, 0}, {2, 1, 3, 17, 5}, {2, 131, 2, 64, 4'000'000}, {1, 3000, 1, 40, 0}};

OwnedTensor theta_of(int64_t H, int64_t K) {
  OwnedTensor theta({H, 1, K}, kF64);
  for (int64_t i = 0; i < H * K; ++i)
    theta.tensor.as<double>()[i] = std::pow(10000.0, -static_cast<double>(i % K) / static_cast<double>(K)) *
                                   (1 + 0.1 * static_cast<double>(i / K));
  return theta;
}

TEST(CudaLrpe, ForwardAndBackward) {
  for (const auto& [B, tokens, H, K, offset] : kLrpe)
    for (DType dtype : gpu_dtypes()) {
      OwnedTensor at({B, tokens}, DType::kInt64);
      for (int64_t i = 0; i < B * tokens; ++i)
        at.tensor.as<int64_t>()[i] = i < tokens || i % tokens < tokens / 2 ? offset + i % tokens : i % 3;
      const IntOperand positions(std::move(at));
      const Operand x = random_operand({B, tokens, H, K}, dtype, 1), theta(theta_of(H, K), kF32);
      const Operand y = nan_operand({B, tokens, H, 2 * K}, dtype);
      const std::string what = fmt::format("{} x {} x {} x {} {}", B, tokens, H, K, to_string(dtype));
      lrpe_forward(x.host, theta.host, positions.host, y.host, Stream{});
      lrpe_forward(x.device, theta.device, positions.device, y.device, gpu_stream());
      expect_close(y, what);
      const Operand dy = random_operand({B, tokens, H, 2 * K}, dtype, 2), dx = nan_operand({B, tokens, H, K}, dtype);
      const Operand dtheta = random_operand({H, 1, K}, kF32, 3);
      const OwnedTensor again = to_device(to_host(dtheta.device));
      lrpe_backward(x.host, theta.host, positions.host, dy.host, dx.host, dtheta.host, Stream{});
      lrpe_backward(x.device, theta.device, positions.device, dy.device, dx.device, dtheta.device, gpu_stream());
      expect_close(dx, what + " dx");
      expect_close(dtheta, what + " dtheta");
      lrpe_backward(x.device, theta.device, positions.device, dy.device, dx.device, again, gpu_stream());
      EXPECT_TRUE(same_device_bytes(again, dtheta.device)) << "differs between two runs";
    }
}

IntOperand targets_of(int64_t N, int64_t vocab) {
  OwnedTensor targets({N}, DType::kInt32);
  for (int64_t i = 0; i < N; ++i)
    targets.tensor.as<int32_t>()[i] = i % 5 == 3 ? -1 : static_cast<int32_t>(random_bits(3, 1, i) % vocab);
  return IntOperand(std::move(targets));
}

TEST(CudaLoss, LossesAndGradients) {
  for (const auto& [N, vocab] :
       std::vector<std::array<int64_t, 2>>{{0, 5}, {1, 1}, {5, 2}, {20, 61}, {40, 32000}, {4, 131072}, {3, 50257}})
    for (DType dtype : gpu_dtypes())
      for (DType gradient_dtype : gpu_dtypes())
        for (double size : {1.0, 1e4}) {
          const Operand logits = random_operand({N, vocab}, dtype, 1, size);
          const IntOperand targets = targets_of(N, vocab);
          const Operand losses = nan_operand({N}, kF64), only = nan_operand({N}, kF64);
          const Operand dlogits = nan_operand({N, vocab}, gradient_dtype);
          const std::string what = fmt::format("{} x {} of {}", N, vocab, size);
          cross_entropy(logits.host, targets.host, losses.host, 0.25, dlogits.host, Stream{});
          cross_entropy(logits.device, targets.device, losses.device, 0.25, dlogits.device, gpu_stream());
          expect_close(losses, what);
          expect_close(dlogits, what + " gradient");
          cross_entropy(logits.device, targets.device, only.device, 0.25, {}, gpu_stream());
          EXPECT_TRUE(same_device_bytes(only.device, losses.device)) << "without gradient";
          if (dtype != gradient_dtype) continue;
          cross_entropy(logits.device, targets.device, only.device, 0.25, logits.device, gpu_stream());
          EXPECT_TRUE(same_device_bytes(only.device, losses.device)) << "in place";
          EXPECT_TRUE(same_device_bytes(logits.device, dlogits.device)) << "in place";
        }
}

TEST(CudaLoss, WhatIsNotANumberStaysVisible) {
  OwnedTensor values = random_tensor<double>({4, 5000}, 1);
  values.tensor.as<double>()[5000 + 4321] = std::numeric_limits<double>::quiet_NaN();
  for (int i = 0; i < 4000; ++i) values.tensor.as<double>()[3 * 5000 + i] = -std::numeric_limits<double>::infinity();
  const Operand logits(values, kF32), losses = nan_operand({4}, kF64);
  const IntOperand targets(int_tensor<int32_t>({4}, {1, 1, 5000, 4999}));
  cross_entropy(logits.device, targets.device, losses.device, 1, {}, gpu_stream());
  const std::vector<double> got = device_doubles(losses.device);
  EXPECT_TRUE(std::isfinite(got[0]));
  EXPECT_TRUE(std::isnan(got[1])) << "a NaN among the logits";
  EXPECT_TRUE(std::isnan(got[2])) << "a target outside the vocabulary";
  EXPECT_TRUE(std::isfinite(got[3])) << "most logits are -inf";
}

}  // namespace
}  // namespace baton
