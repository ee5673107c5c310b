// leaving[i] = G(rank, layer, i) * entering[i] + S(rank, layer, i), float32, one element a thread, rounded after each
// operation so that every device and every launch gives the same bits.
#include "runtime/error.h"
#include "tests/dist/device_carry.h"

namespace baton::checks {
namespace {

constexpr int kThreads = 256;

__device__ unsigned mix(unsigned x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

__device__ int64_t nanoseconds() {
  int64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__global__ void advance_kernel(const float* entering, float* leaving, int64_t n, unsigned seed, int64_t delay_ns) {
  const int64_t start = nanoseconds();
  while (nanoseconds() - start < delay_ns) __nanosleep(1000);
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const unsigned bits = mix(seed + static_cast<unsigned>(i));
  const float G = static_cast<float>(bits >> 8) * 0x1p-24F;
  const float S = static_cast<float>(mix(bits) >> 8) * 0x1p-23F - 1;
  leaving[i] = __fadd_rn(__fmul_rn(G, entering[i]), S);
}

}  // namespace

void advance_on_device(int rank, int layer, const Tensor& entering, const Tensor& leaving, int64_t delay_ns,
                       const Stream& stream) {
  const int64_t n = entering.numel();
  const auto num_blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  advance_kernel<<<num_blocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      entering.as<float>(), leaving.as<float>(), n, static_cast<unsigned>(rank * 1000003 + layer * 7919), delay_ns);
  const cudaError_t result = cudaGetLastError();
  CHECK(result == cudaSuccess, "advance_kernel: {}", cudaGetErrorString(result));
}

}  // namespace baton::checks
