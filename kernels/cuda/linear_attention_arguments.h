// What the kernels of linear attention are given, and their launchers. Shapes and words as in
// kernels/linear_attention.h, which .cu files cannot include (nvcc does not take the checks of fmt);
// linear_attention.cpp asserts that both agree.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace baton::cuda::attention {

constexpr int kChunk = 64;
enum class Gate { kNone, kFixed, kScalar, kVector, kBilinear };

/// q, k, v, dout and their gradients are all bfloat16 or all float32; everything else is float32. Null where absent.
struct Arguments {
  int64_t B, T, H, K, V, N;
  Gate gate;
  float scale;
  const void *q, *k, *v, *dout;
  const float *gk, *gv;
  const uint8_t* starts;
  float *state, *dstate;  // [B, H, N + 1, K, V]
  float *decay_k, *decay_v;
  void *o, *dq, *dk, *dv;
  float *dgk, *dgv;
};

/// Which tensors a pass over chunks makes: o; dq, dk and dgk; dv and dgv.
enum class Pass { kOutput, kKeys, kValues };

/// Part of a chunk for state_at: tokens [first, first + n) composed with `from` [B, H, K, V], `to` of the same shape.
struct Part {
  int64_t first = 0, n = 0;
  const float* from = nullptr;  // of batch and head 0; the next ones follow after from_stride numbers
  int64_t from_stride = 0;
  float* to = nullptr;
};

// Tensor cores: bfloat16, K and V multiples of 8, pointers aligned to 16 bytes. `.._fit` says whether these sizes fit
// into the shared memory that the device gives a block.
bool carry_fits(const Arguments& a, int64_t shared_bytes);
bool output_fit(const Arguments& a, int64_t shared_bytes);
bool keys_fit(const Arguments& a, int64_t shared_bytes);
bool values_fit(const Arguments& a, int64_t shared_bytes);
cudaError_t launch_carry(const Arguments& a, bool backward, cudaStream_t stream);
cudaError_t launch_output(const Arguments& a, cudaStream_t stream);
cudaError_t launch_keys(const Arguments& a, cudaStream_t stream);
cudaError_t launch_values(const Arguments& a, cudaStream_t stream);

// Plain float32 arithmetic, either dtype, any K and V.
cudaError_t launch_general_carry(const Arguments& a, bool bfloat16, bool backward, const Part* part,
                                 cudaStream_t stream);
cudaError_t launch_general_pass(const Arguments& a, bool bfloat16, Pass pass, cudaStream_t stream);

/// Composes the chunks: forward from first = h0 into last = ht, backward from first = dht into last = dh0.
cudaError_t launch_advance(const Arguments& a, bool backward, const float* first, float* last, cudaStream_t stream);

}  // namespace baton::cuda::attention
