#include <cuda_runtime.h>

#include "comm/device.h"

namespace baton {

bool build_has_cuda() { return true; }

std::string device_uuid(int index) {
  cudaDeviceProp properties{};
  const cudaError_t result = cudaGetDeviceProperties(&properties, index);
  CHECK(result == cudaSuccess, "CUDA device {}: {}", index, cudaGetErrorString(result));
  std::string text = "GPU-";
  for (const char byte : properties.uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string link_between(int index, int other) {
  const auto attribute = [&](cudaDeviceP2PAttr name) {
    int value = 0;
    const cudaError_t result = cudaDeviceGetP2PAttribute(&value, name, index, other);
    CHECK(result == cudaSuccess, "CUDA devices {} and {}: {}", index, other, cudaGetErrorString(result));
    return value;
  };
  if (attribute(cudaDevP2PAttrAccessSupported) == 0) return "no peer access";
  // Atomics between devices exist over NVLink and not over PCIe.
  return attribute(cudaDevP2PAttrNativeAtomicSupported) != 0 ? "NVLink" : "PCIe peer access";
}

}  // namespace baton
