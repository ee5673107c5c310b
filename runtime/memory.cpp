#include "runtime/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/cuda.h"

namespace baton {
namespace {

constexpr int64_t kAlignment = 256;

constexpr int64_t kHugePage = int64_t{2} << 20;

std::atomic<int64_t> host_allocations{0};

int64_t align_up(int64_t bytes, int64_t to = kAlignment) { return (bytes + to - 1) / to * to; }

/// Large pieces ask for huge pages: with small ones the operator spends its time on address translation once its
/// tensors outgrow a few thousand pages.
void* allocate_host(int64_t bytes) {
  const int64_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  const auto whole = static_cast<size_t>(align_up(bytes, alignment));
  void* data = std::aligned_alloc(static_cast<size_t>(alignment), whole);
  CHECK(data != nullptr, "cannot allocate {} bytes of host memory", bytes);
  ++host_allocations;
  if (alignment == kHugePage) madvise(data, whole, MADV_HUGEPAGE);  // advice: may be refused
  return data;
}

}  // namespace

void synchronize(const Stream& stream) {
  if (stream.device.type == DeviceType::kCuda) cuda::synchronize(stream);
}

int64_t num_allocations() { return host_allocations + cuda::num_allocations(); }

Buffer::Buffer(int64_t bytes, Device device) : bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  if (device.type == DeviceType::kCuda) {
    data_ = cuda::allocate(bytes, device.index);
    return;
  }
  data_ = allocate_host(bytes);
  std::memset(data_, 0, static_cast<size_t>(bytes));
}

Buffer::~Buffer() {
  if (data_ != nullptr && device_.type == DeviceType::kCuda) {
    cuda::release(data_);
  } else {
    std::free(data_);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), device_(other.device_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  return *this;
}

OwnedTensor::OwnedTensor(const Shape& shape, DType dtype, Device device)
    : buffer(shape.numel() * size_of(dtype), device), tensor{buffer.data(), shape, dtype, device} {}

HostView::HostView(const Tensor& x) : x_(x) {
  if (x.device.type != DeviceType::kCpu) copy_ = OwnedTensor(x.shape, x.dtype);
}

void HostView::download() const {
  if (!copy_.tensor.defined()) return;
  const Stream stream{x_.device};
  cuda::synchronize_device(x_.device.index);  // x may still be written on another stream
  copy(x_, copy_, stream);
  synchronize(stream);
}

void HostView::upload() const {
  if (!copy_.tensor.defined()) return;
  const Stream stream{x_.device};
  cuda::synchronize_device(x_.device.index);
  copy(copy_, x_, stream);
  synchronize(stream);
}

Arena::Arena(Device device, int64_t bytes) : device_(device), buffer_(std::max<int64_t>(bytes, kAlignment), device) {}

Tensor Arena::tensor(const std::string& group, const Shape& shape, DType dtype) {
  Tensor t{nullptr, shape, dtype, device_};
  const int64_t bytes = align_up(t.bytes());
  if (!measuring()) {
    CHECK(used_bytes_ + bytes <= buffer_.bytes(), "the arena of {} bytes is too small for a {} tensor of {}",
          buffer_.bytes(), group, shape.str());
    t.data = static_cast<char*>(buffer_.data()) + used_bytes_;
  }
  used_bytes_ += bytes;
  bytes_by_group_[group] += bytes;
  return t;
}

void copy(const Tensor& from, const Tensor& to, const Stream& stream) {
  CHECK(from.shape == to.shape && from.dtype == to.dtype, "cannot copy {} {} to {} {}", to_string(from.dtype),
        from.shape.str(), to_string(to.dtype), to.shape.str());
  if (stream.device.type == DeviceType::kCuda) return cuda::copy(from.data, to.data, from.bytes(), stream);
  CHECK(from.device.type == DeviceType::kCpu && to.device.type == DeviceType::kCpu,
        "a copy from or to a CUDA device needs a stream of that device");
  if (from.bytes() > 0) std::memmove(to.data, from.data, static_cast<size_t>(from.bytes()));
}

void set_zero(const Tensor& x, const Stream& stream) {
  CHECK(x.device == stream.device, "a tensor is set to zero on a stream of its own device");
  if (stream.device.type == DeviceType::kCuda) return cuda::set_zero(x.data, x.bytes(), stream);
  if (x.bytes() > 0) std::memset(x.data, 0, static_cast<size_t>(x.bytes()));
}

}  // namespace baton
