// The scan over device tensors, in stream order: nothing here waits on the host until all is enqueued.
#include "comm/state_scan.h"
#include "runtime/cuda.h"
#include "tests/check_tools.h"
#include "tests/dist/device_carry.h"
#include "tests/dist/device_checks.h"

namespace baton::checks {
namespace {

constexpr int kLayers = 6;
const Shape kState{2, 4, 64, 128};

OwnedTensor normal_on_device(const Shape& shape, Device device, uint64_t seed, const Stream& stream) {
  OwnedTensor host(shape, DType::kFloat32), x(shape, DType::kFloat32, device);
  fill_normal<float>(host, 4, seed);
  cuda::copy(host.tensor.data, x.tensor.data, host.tensor.bytes(), stream);
  cuda::synchronize(stream);
  return x;
}

int first_rank(Direction direction, int P) { return direction == Direction::kForward ? 0 : P - 1; }
int step_of(Direction direction) { return direction == Direction::kForward ? 1 : -1; }

/// What enters and leaves rank `rank`, made by this device alone.
struct Serial {
  OwnedTensor entering, leaving;
};
Serial serial_states(Device device, Direction direction, int P, int rank, int layer, const Stream& stream) {
  Serial s{normal_on_device(kState, device, layer, stream), OwnedTensor(kState, DType::kFloat32, device)};
  const int first = first_rank(direction, P), step = step_of(direction);
  for (int r = first;; r += step) {
    advance_on_device(r, layer, s.entering, s.leaving, 0, stream);
    if (r == rank) return s;
    cuda::copy(s.leaving.tensor.data, s.entering.tensor.data, s.leaving.tensor.bytes(), stream);
  }
}

void scan_layers(Group& group, StateScan& scan, Device device, Direction direction, const Stream& stream) {
  const int P = group.size(), rank = group.rank();
  const bool is_first = rank == first_rank(direction, P), is_last = rank == P - 1 - first_rank(direction, P);
  // One pair of states for all layers, so that a message too early or too late is seen; what they held is put aside.
  const OwnedTensor entering(kState, DType::kFloat32, device), leaving(kState, DType::kFloat32, device);
  std::vector<OwnedTensor> initial, entered, left;
  for (int layer = 0; layer < kLayers; ++layer) {
    initial.push_back(normal_on_device(kState, device, layer, stream));
    entered.emplace_back(kState, DType::kFloat32, device);
    left.emplace_back(kState, DType::kFloat32, device);
  }
  const int64_t bytes = entering.tensor.bytes(), sent_before = scan.sent_bytes();
  for (int layer = 0; layer < kLayers; ++layer) {
    if (is_first) cuda::copy(initial[layer].tensor.data, entering.tensor.data, bytes, stream);
    const auto advance = [&, layer](const Tensor& from, const Tensor& to) {
      advance_on_device(rank, layer, from, to, (rank + layer) % 2 == 0 ? 20'000'000 : 0, stream);
    };
    scan.begin(direction, entering, leaving, {advance}, stream);
    scan.finish(stream);
    cuda::copy(entering.tensor.data, entered[layer].tensor.data, bytes, stream);
    cuda::copy(leaving.tensor.data, left[layer].tensor.data, bytes, stream);
  }
  scan.settle();
  cuda::Event end;
  end.record(stream);
  EXPECT(!end.done(), "rank {} of {}: the host waited for the scan", rank, P);
  group.synchronize(stream);
  EXPECT(end.done(), "rank {} of {}: synchronize did not wait", rank, P);
  for (int layer = 0; layer < kLayers; ++layer) {
    const Serial expected = serial_states(device, direction, P, rank, layer, stream);
    EXPECT(same_bits_on_device(entered[layer], expected.entering, stream),
           "rank {} of {}, layer {}: the entering state is wrong", rank, P, layer);
    EXPECT(same_bits_on_device(left[layer], expected.leaving, stream),
           "rank {} of {}, layer {}: the leaving state is wrong", rank, P, layer);
  }
  const int64_t formula = is_last ? 0 : kLayers * bytes;
  EXPECT(scan.sent_bytes() - sent_before == formula, "rank {} of {} sent {} bytes, not {}", rank, P,
         scan.sent_bytes() - sent_before, formula);
}

void wrap_layers(Group& group, StateScan& scan, Device device, Direction direction, const Stream& stream) {
  const int P = group.size(), rank = group.rank();
  const int from = P - 1 - first_rank(direction, P), to = first_rank(direction, P);
  std::vector<OwnedTensor> storage;
  std::vector<Tensor> leaving, entering;
  for (int layer = 0; layer < kLayers; ++layer) {
    storage.push_back(normal_on_device(kState, device, 100 + rank * 10 + layer, stream));
    leaving.push_back(storage.back());
    storage.push_back(normal_on_device(kState, device, 500 + rank * 10 + layer, stream));
    entering.push_back(storage.back());
  }
  scan.wrap(direction, leaving, entering, stream);
  group.synchronize(stream);
  for (int layer = 0; layer < kLayers; ++layer) {
    const uint64_t seed = rank == to ? 100 + from * 10 + layer : 500 + rank * 10 + layer;
    EXPECT(same_bits_on_device(entering[layer], normal_on_device(kState, device, seed, stream), stream),
           "rank {} of {}: layer {} wrapped wrong", rank, P, layer);
  }
  scan.settle();
}

}  // namespace

bool same_bits_on_device(const Tensor& a, const Tensor& b, const Stream& stream) {
  const OwnedTensor x(a.shape, a.dtype), y(b.shape, b.dtype);
  cuda::copy(a.data, x.tensor.data, a.bytes(), stream);
  cuda::copy(b.data, y.tensor.data, b.bytes(), stream);
  cuda::synchronize(stream);
  return same_bits(x, y);
}

void device_scan_is_serial_composition(Group& group, Device device) {
  const cuda::OwnedStream own(device.index, false);
  StateScan scan(group, ScanStrategy::kChain);
  for (const Direction direction : {Direction::kForward, Direction::kReversed, Direction::kForward}) {
    scan_layers(group, scan, device, direction, own.stream());
    wrap_layers(group, scan, device, direction, own.stream());
  }
}

}  // namespace baton::checks
