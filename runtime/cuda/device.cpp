// Devices, memory, streams and events through the CUDA runtime.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cuda.h"
#include "runtime/cuda/check.h"

namespace baton::cuda {
namespace {

std::atomic<int64_t> allocations{0};

/// Of the process, beside each device's default one.
std::mutex streams_mutex;
std::vector<Stream> streams;

using Clock = std::chrono::steady_clock;
// While the host waits under a watch, as comm's ranks do: the delay it adds stays small beside the wait itself.
constexpr std::chrono::microseconds kYieldFor{200}, kShortestSleep{20}, kLongestSleep{1000};
Watch watch;

bool is_pageable(const void* data) {
  cudaPointerAttributes attributes{};
  CUDA_CHECK(cudaPointerGetAttributes(&attributes, data));
  return attributes.type == cudaMemoryTypeUnregistered;
}

cudaStream_t handle_of(const Stream& stream) {
  CHECK(stream.device.type == DeviceType::kCuda, "a CUDA stream was expected, but this one is the CPU's");
  return static_cast<cudaStream_t>(stream.handle);
}

/// Makes a device current and puts the one before back.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) {
    CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ != index) CUDA_CHECK(cudaSetDevice(index));
  }
  ~CurrentDevice() { static_cast<void>(cudaSetDevice(before_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace

int num_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());  // else a later check would report it
  return 0;
}

int64_t max_shared_bytes() {
  static const int64_t bytes = [] {
    int of_a_block = 0;
    if (num_devices() == 0) return kHopperSharedBytes;
    CUDA_CHECK(cudaDeviceGetAttribute(&of_a_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    return static_cast<int64_t>(of_a_block);
  }();
  return bytes;
}

#ifdef BATON_HAS_HOPPER_CODE
constexpr bool kHopperCode = true;
#else
constexpr bool kHopperCode = false;
#endif

bool has_warpgroups() {
  static const bool has = [] {
    int major = 0;
    if (num_devices() == 0) return true;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    return major == 9 && kHopperCode;
  }();
  return has;
}

std::string device_name(int index) {
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return properties.name;
}

DeviceMemory device_memory(int index) {
  const CurrentDevice current(index);
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {static_cast<int64_t>(total), static_cast<int64_t>(free)};
}

void set_device(int index) { CUDA_CHECK(cudaSetDevice(index)); }

void* allocate(int64_t bytes, int index) {
  const CurrentDevice current(index);
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  CHECK(status == cudaSuccess, "cannot allocate {} bytes on CUDA device {} with {} bytes free: {}", bytes, index,
        device_memory(index).free, cudaGetErrorString(status));
  ++allocations;
  CUDA_CHECK(cudaMemset(data, 0, static_cast<size_t>(bytes)));
  // Other streams need not wait for the default stream's memset, so the host does.
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return data;
}

void release(void* data) noexcept {
  if (watch.abandon && std::uncaught_exceptions() > 0) watch.abandon();
  static_cast<void>(cudaFree(data));
}

int64_t num_allocations() { return allocations; }

void* workspace(const Stream& stream) {
  static std::mutex mutex;
  static std::map<std::pair<int, void*>, void*> places;
  const std::lock_guard lock(mutex);
  void*& place = places[{stream.device.index, handle_of(stream)}];
  if (place == nullptr) place = allocate(kWorkspaceBytes, stream.device.index);
  return place;
}

void copy(const void* from, void* to, int64_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  if (watch.look && is_pageable(to)) cuda::synchronize(stream);
  CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, handle_of(stream)));
}

void set_zero(void* data, int64_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  CUDA_CHECK(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), handle_of(stream)));
}

OwnedStream::OwnedStream(int index, bool high_priority) {
  const CurrentDevice current(index);
  int lowest = 0, highest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t handle = nullptr;
  CUDA_CHECK(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, high_priority ? highest : lowest));
  stream_ = {{DeviceType::kCuda, index}, handle};
  const std::lock_guard lock(streams_mutex);
  streams.push_back(stream_);
}

OwnedStream::~OwnedStream() {
  const std::lock_guard lock(streams_mutex);
  std::erase_if(streams, [&](const Stream& s) { return s.handle == stream_.handle; });
  static_cast<void>(cudaStreamDestroy(static_cast<cudaStream_t>(stream_.handle)));
}

Event::Event(bool timed) {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  handle_ = event;
}

Event::~Event() { static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(handle_))); }

void Event::record(const Stream& stream) {
  CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(handle_), handle_of(stream)));
}

void Event::wait_on(const Stream& stream) {
  CUDA_CHECK(cudaStreamWaitEvent(handle_of(stream), static_cast<cudaEvent_t>(handle_), 0));
}

bool Event::done() const {
  const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  CUDA_CHECK(status);
  return true;
}

double Event::seconds_since(const Event& start) const {
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(start.handle_), static_cast<cudaEvent_t>(handle_)));
  return 1e-3 * ms;
}

Graph::Graph(const Stream& stream, const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(handle_of(stream), cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(handle_of(stream), &graph));
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    throw;
  }
  CUDA_CHECK(cudaStreamEndCapture(handle_of(stream), &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  CUDA_CHECK(status);
  handle_ = executable;
}

Graph::~Graph() { static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_))); }

void Graph::launch(const Stream& stream) const {
  CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), handle_of(stream)));
}

void synchronize_device(int index) {
  const CurrentDevice current(index);
  const Device device{DeviceType::kCuda, index};
  std::vector<Stream> all{Stream{device}};
  {
    const std::lock_guard lock(streams_mutex);
    std::copy_if(streams.begin(), streams.end(), std::back_inserter(all),
                 [&](const Stream& s) { return s.device == device; });
  }
  for (const Stream& stream : all) cuda::synchronize(stream);
}

void synchronize(const Stream& stream) {
  if (!watch.look) {
    CUDA_CHECK(cudaStreamSynchronize(handle_of(stream)));
    return;
  }
  const auto start = Clock::now();
  for (;;) {
    const cudaError_t status = cudaStreamQuery(handle_of(stream));
    if (status != cudaErrorNotReady) {
      CUDA_CHECK(status);
      return;
    }
    static_cast<void>(cudaGetLastError());
    const auto waited = Clock::now() - start;
    watch.look(std::chrono::duration<double>(waited).count());
    if (waited < kYieldFor)
      sched_yield();
    else
      std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 16, kShortestSleep, kLongestSleep));
  }
}

void set_watch(Watch new_watch) { watch = std::move(new_watch); }

}  // namespace baton::cuda
