// What host code asks of CUDA: devices, memory, streams and events, in host C++. A build without the CUDA backend has
// these too; there num_devices() is 0, and everything that needs a device throws.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/stream.h"

namespace baton::cuda {

/// Devices this process sees; 0 without a driver, too.
int num_devices();
std::string device_name(int index);
inline constexpr int64_t kHopperSharedBytes = 227 << 10;
/// Bytes of shared memory that the first device gives one block; a Hopper GPU's where there is none.
int64_t max_shared_bytes();
/// Whether the first device has the instructions of Hopper's warpgroups (compute capability 9) and this program code
/// for them (sm_90a); without a device, true.
bool has_warpgroups();
/// Total and free bytes of a device.
struct DeviceMemory {
  int64_t total = 0, free = 0;
};
DeviceMemory device_memory(int index);

/// Makes the device current for this thread, once at start.
void set_device(int index);

void* allocate(int64_t bytes, int index);
void release(void* data) noexcept;
/// Number of allocate() calls so far.
int64_t num_allocations();
/// Scratch of a stream: kWorkspaceBytes, allocated when the stream first asks for it and kept. What is in it holds only
/// until the next operation on the stream.
inline constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
void* workspace(const Stream& stream);

/// Asynchronous on the stream; either side may be host memory (then pageable copies wait).
void copy(const void* from, void* to, int64_t bytes, const Stream& stream);
void set_zero(void* data, int64_t bytes, const Stream& stream);

/// Owns a CUDA stream. high_priority: for what others wait for (the state scan).
class OwnedStream {
 public:
  OwnedStream(int index, bool high_priority);
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  const Stream& stream() const { return stream_; }

 private:
  Stream stream_;
};

/// Orders streams: record on one, wait on another (the host does not wait). Timed ones measure what lies between two.
class Event {
 public:
  explicit Event(bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream);
  void wait_on(const Stream& stream);
  bool done() const;
  /// Both timed and done.
  double seconds_since(const Event& start) const;

 private:
  void* handle_ = nullptr;
};

/// What `work` gives to the stream, as one CUDA graph. Nothing of it runs before a launch.
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(const Stream& stream) const;

 private:
  void* handle_ = nullptr;
};

/// Waits until everything given to the stream has run; so does a copy to pageable host memory. Both let the watch,
/// where one is set, look again and again meanwhile.
void synchronize(const Stream& stream);
/// The same for every stream of the device; for slow paths only.
void synchronize_device(int index);

/// For a transport: a device that waits for a lost rank would hold the host for ever, in a wait or where it releases
/// memory. There is one a process; an empty one takes it away.
struct Watch {
  std::function<void(double waited_s)> look;  // throws to end a wait
  std::function<void()> abandon;              // before memory is released while an exception is in flight
};
void set_watch(Watch watch);

}  // namespace baton::cuda
