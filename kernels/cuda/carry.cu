// Carries of shards (kernels/carry.h), in float32:
//   a shard's state    h = 0;  h = decay_s * h + S_s  over its spans (from the last to the first for gradients)
//   composition        decay_2 * S_1 + S_2, each channel's decay_1 decay_2
//
// Threads: 256 a block, one element of a state or of a decay each, in the order of memory; of states K V is the fast
// dimension. Every element is fma of numbers in [0, 1] as decays, so it has advance's bits. No shared memory.
// The one exponent is a log decay <= 0 times a number of tokens.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/operand.h"

namespace baton::cuda {
namespace {

constexpr int kThreads = 256;

struct Sizes {
  int64_t H, K, V, N;  // N spans
};

__device__ __forceinline__ int64_t thread_index() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void __launch_bounds__(kThreads)
    shard_state_kernel(const float* __restrict__ states, const float* __restrict__ decay_k,
                       const float* __restrict__ decay_v, Sizes s, int64_t n, bool reversed, float* __restrict__ to) {
  const int64_t i = thread_index(), size = s.K * s.V;
  if (i >= n) return;
  const int64_t head = i / size, k = i % size / s.V, v = i % s.V;
  float h = 0;
  for (int64_t step = 0; step < s.N; ++step) {
    const int64_t span = reversed ? s.N - 1 - step : step;
    float decay = decay_k[(head * s.N + span) * s.K + k];
    if (decay_v != nullptr) decay *= decay_v[(head * s.N + span) * s.V + v];
    h = fmaf(decay, h, states[(head * (s.N + 1) + span + (reversed ? 0 : 1)) * size + i % size]);
  }
  to[i] = h;
}

/// to [B, H, dim] = the product over N spans of spans [B, H, N, dim].
__global__ void __launch_bounds__(kThreads)
    shard_decay_kernel(const float* __restrict__ spans, int64_t N, int64_t dim, int64_t n, float* __restrict__ to) {
  const int64_t i = thread_index();
  if (i >= n) return;
  float product = 1;
  for (int64_t span = 0; span < N; ++span) product *= spans[(i / dim * N + span) * dim + i % dim];
  to[i] = product;
}

// first, second and to may be the same memory: an element is read and written by one thread.
__global__ void __launch_bounds__(kThreads)
    compose_state_kernel(const float* first, const float* second, const float* __restrict__ decay_k,
                         const float* __restrict__ decay_v, Sizes s, int64_t n, float* to) {
  const int64_t i = thread_index();
  if (i >= n) return;
  float decay = decay_k[i / s.V];
  if (decay_v != nullptr) decay *= decay_v[i / (s.K * s.V) * s.V + i % s.V];
  to[i] = fmaf(decay, first[i], second[i]);
}

__global__ void __launch_bounds__(kThreads) multiply_kernel(const float* a, const float* b, int64_t n, float* to) {
  const int64_t i = thread_index();
  if (i < n) to[i] = a[i] * b[i];
}

__global__ void __launch_bounds__(kThreads)
    fixed_decay_kernel(const float* __restrict__ log_decay, const int64_t* __restrict__ tokens, int64_t B,
                       int64_t first, int64_t last, Sizes s, int64_t n, float* __restrict__ decay_k) {
  const int64_t i = thread_index();
  if (i >= n) return;
  const int64_t head = i / s.K % s.H, b = i / (s.K * s.H);
  int64_t sum = 0;
  for (int64_t p = first; p < last && sum >= 0; ++p) {
    const int64_t its = tokens[p * B + b];
    sum = its < 0 ? -1 : sum + its;
  }
  const double log = log_decay != nullptr && sum > 0 ? log_decay[head] : 0;
  decay_k[i] = sum < 0 ? 0.0F : static_cast<float>(exp(log * static_cast<double>(sum)));
}

const float* data_of(const Tensor& x, const Stream& stream) {
  if (!x.defined()) return nullptr;
  check_operand(x, "a carry", x.shape, DType::kFloat32, stream);
  return pointer<const float>(x);
}
float* output_of(const Tensor& x, const Stream& stream) { return const_cast<float*>(data_of(x, stream)); }

template <class Kernel, class... Arguments>
void launch(Kernel kernel, int64_t n, const Stream& stream, Arguments... arguments) {
  if (n == 0) return;
  kernel<<<num_blocks(n, kThreads), kThreads, 0, handle_of(stream)>>>(arguments...);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void shard_carry(const AttentionShape& s, const AttentionChunks& chunks, const Tensor& states, bool reversed,
                 const Carry& carry, const Stream& stream) {
  const Sizes sizes{s.H, s.K, s.V, s.num_spans()};
  const float* decay_k = data_of(chunks.decay_k, stream);
  const float* decay_v = s.has_decay_v() ? data_of(chunks.decay_v, stream) : nullptr;
  const int64_t n = carry.state.numel();
  launch(shard_state_kernel, n, stream, data_of(states, stream), decay_k, decay_v, sizes, n, reversed,
         output_of(carry.state, stream));
  const auto multiply = [&](const float* spans, const Tensor& decay, int64_t dim) {
    if (!decay.defined()) return;
    launch(shard_decay_kernel, decay.numel(), stream, spans, sizes.N, dim, decay.numel(), output_of(decay, stream));
  };
  multiply(decay_k, carry.decay_k, s.K);
  multiply(decay_v, carry.decay_v, s.V);
}

/// Decays after the state: out's may be those that the state is multiplied by.
void compose(const Carry& first, const Carry& second, const Carry& out, const Stream& stream) {
  const Tensor& to = out.state;
  const Sizes sizes{to.dim(1), to.dim(2), to.dim(3), 0};
  launch(compose_state_kernel, to.numel(), stream, data_of(first.state, stream), data_of(second.state, stream),
         data_of(second.decay_k, stream), data_of(second.decay_v, stream), sizes, to.numel(), output_of(to, stream));
  const auto multiply = [&](const Tensor& a, const Tensor& b, const Tensor& both) {
    if (!both.defined()) return;
    launch(multiply_kernel, both.numel(), stream, data_of(a, stream), data_of(b, stream), both.numel(),
           output_of(both, stream));
  };
  multiply(first.decay_k, second.decay_k, out.decay_k);
  multiply(first.decay_v, second.decay_v, out.decay_v);
}

void fixed_decay(const Tensor& log_decay, const Tensor& tokens, int64_t first, int64_t last, const Tensor& decay_k,
                 const Stream& stream) {
  check_operand(tokens, "tokens of shards", tokens.shape, DType::kInt64, stream);
  const Sizes sizes{decay_k.dim(1), decay_k.dim(2), 0, 0};
  launch(fixed_decay_kernel, decay_k.numel(), stream, data_of(log_decay, stream), pointer<const int64_t>(tokens),
         tokens.dim(1), first, last, sizes, decay_k.numel(), output_of(decay_k, stream));
}

}  // namespace baton::cuda
