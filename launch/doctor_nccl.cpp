// The stage of baton doctor that talks over NCCL.
#include <array>
#include <chrono>

#include "comm/nccl.h"
#include "launch/doctor.h"
#include "runtime/cuda.h"
#include "runtime/log.h"
#include "runtime/memory.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::array<int64_t, 5> kSizes{4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
constexpr int64_t kLargest = kSizes.back();
constexpr int kRepeats = 10;

std::string row(const char* what, int64_t bytes, double seconds, double moved_bytes) {
  return fmt::format("  {:<28}{:>12}{:>12.1f} us{:>10.1f} GB/s\n", what, format_bytes(bytes), seconds * 1e6,
                     moved_bytes / seconds * 1e-9);
}

std::unique_ptr<Group> timed_group(Doctor& doctor, Device device, const NcclOptions& options) {
  auto host = doctor.world().group();
  host->set_deadline(doctor.deadline());
  const auto start = Clock::now();
  auto group = make_nccl_group(std::move(host), device, options);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  doctor.say(fmt::format("  communicator \"{}\" made and connected in {:.2f} s\n", options.name,
                         all_reduce(doctor.work(), seconds, ReduceOp::kMax)));
  return group;
}

/// Every rank sends to the next and receives from the one before at one time; then even ranks send to the next alone.
void time_messages(Doctor& doctor, Group& group, Device device) {
  const cuda::OwnedStream own(device.index, false);
  const OwnedTensor out({kLargest}, DType::kUInt8, device), in({kLargest}, DType::kUInt8, device);
  const int P = group.size(), rank = group.rank(), next = (rank + 1) % P, previous = (rank + P - 1) % P;
  for (const int64_t bytes : kSizes) {
    const Tensor sent = out.tensor.rows(0, bytes), received = in.tensor.rows(0, bytes);
    const double ring = doctor.time(kRepeats, [&] {
      group.exchange({{Transfer::Kind::kSend, sent, next}, {Transfer::Kind::kRecv, received, previous}}, own.stream())
          ->wait();
      group.synchronize(own.stream());
    });
    doctor.say(row("ring, all ranks at once", bytes, ring, static_cast<double>(bytes)));
    const double neighbour = doctor.time(kRepeats, [&] {
      if (rank % 2 == 0 && rank + 1 < P) group.send(sent, rank + 1, own.stream())->wait();
      if (rank % 2 == 1) group.recv(received, rank - 1, own.stream())->wait();
      group.synchronize(own.stream());
    });
    doctor.say(row("to the next rank alone", bytes, neighbour, static_cast<double>(bytes)));
  }
}

/// What goes around the ring comes back as it was, byte by byte.
void check_ring(Group& group, Device device) {
  const cuda::OwnedStream own(device.index, false);
  constexpr int64_t kBytes = 1 << 20;
  const int P = group.size(), rank = group.rank(), previous = (rank + P - 1) % P;
  const auto byte_of = [](int r, int64_t i) { return static_cast<uint8_t>(i * 131 + r * 17 + (i >> 8)); };
  OwnedTensor host({kBytes}, DType::kUInt8);
  const OwnedTensor out({kBytes}, DType::kUInt8, device), in({kBytes}, DType::kUInt8, device);
  for (int64_t i = 0; i < kBytes; ++i) host.tensor.as<uint8_t>()[i] = byte_of(rank, i);
  cuda::copy(host.tensor.data, out.tensor.data, kBytes, own.stream());
  group.exchange({{Transfer::Kind::kSend, out, (rank + 1) % P}, {Transfer::Kind::kRecv, in, previous}}, own.stream())
      ->wait();
  group.synchronize(own.stream());
  cuda::copy(in.tensor.data, host.tensor.data, kBytes, own.stream());
  cuda::synchronize(own.stream());
  for (int64_t i = 0; i < kBytes; ++i)
    CHECK(host.tensor.as<uint8_t>()[i] == byte_of(previous, i), "byte {} of what rank {} sent arrived wrong", i,
          previous);
}

void check_sum(Doctor& doctor, Group& group, Device device) {
  const cuda::OwnedStream own(device.index, false);
  const int64_t n = kLargest / 4, P = group.size();
  OwnedTensor host({n}, DType::kFloat32);
  const OwnedTensor x({n}, DType::kFloat32, device);
  auto* values = host.tensor.as<float>();
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 1021 + group.rank());
  cuda::copy(values, x.tensor.data, kLargest, own.stream());
  group.all_reduce(x, ReduceOp::kSum, own.stream());
  group.synchronize(own.stream());
  cuda::copy(x.tensor.data, values, kLargest, own.stream());
  cuda::synchronize(own.stream());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t expected = P * (i % 1021) + P * (P - 1) / 2;
    CHECK(values[i] == static_cast<float>(expected), "element {} of a sum over all ranks is {}, not {}", i, values[i],
          expected);
  }
  cuda::set_zero(x.tensor.data, kLargest, own.stream());
  const double seconds = doctor.time(kRepeats, [&] {
    group.all_reduce(x, ReduceOp::kSum, own.stream());
    group.synchronize(own.stream());
  });
  const double moved = 2.0 * static_cast<double>(kLargest) * static_cast<double>(P - 1) / static_cast<double>(P);
  doctor.say(row("all_reduce, sum correct", kLargest, seconds, moved));
}

}  // namespace

void check_nccl(Doctor& doctor, Device device) {
  doctor.say(fmt::format("  NCCL {}\n", nccl_version()));
  const auto scan = timed_group(doctor, device, scan_options());
  const auto gradients = timed_group(doctor, device, gradient_options());
  if (scan->size() > 1) {
    check_ring(*scan, device);
    time_messages(doctor, *scan, device);
  } else {
    doctor.say("  one rank: no messages to time\n");
  }
  check_sum(doctor, *gradients, device);
}

}  // namespace baton
