// A build without the CUDA backend: there are no devices, and whatever needs one says so.
#include "runtime/cuda.h"
#include "runtime/profiler.h"

namespace baton::cuda {
namespace {

[[noreturn]] void absent() { throw Error(ExitCode::kInput, "this build has no CUDA backend"); }

}  // namespace

int num_devices() { return 0; }
std::string device_name(int) { absent(); }
int64_t max_shared_bytes() { return kHopperSharedBytes; }
bool has_warpgroups() { return true; }
DeviceMemory device_memory(int) { absent(); }
void set_device(int) { absent(); }
void* allocate(int64_t, int) { absent(); }
void release(void*) noexcept {}
int64_t num_allocations() { return 0; }
void* workspace(const Stream&) { absent(); }
void copy(const void*, void*, int64_t, const Stream&) { absent(); }
void set_zero(void*, int64_t, const Stream&) { absent(); }
OwnedStream::OwnedStream(int, bool) { absent(); }
OwnedStream::~OwnedStream() = default;
Event::Event(bool) { absent(); }
Event::~Event() = default;
void Event::record(const Stream&) { absent(); }
void Event::wait_on(const Stream&) { absent(); }
bool Event::done() const { absent(); }
double Event::seconds_since(const Event&) const { absent(); }
Graph::Graph(const Stream&, const std::function<void()>&) { absent(); }
Graph::~Graph() = default;
void Graph::launch(const Stream&) const { absent(); }
void synchronize(const Stream&) { absent(); }
void synchronize_device(int) { absent(); }
void set_watch(Watch) { absent(); }  // NOLINT(performance-unnecessary-value-param)
void push_range(const char*, int64_t) {}
void pop_range() {}
void start_profiler() { absent(); }
void stop_profiler() { absent(); }

}  // namespace baton::cuda
