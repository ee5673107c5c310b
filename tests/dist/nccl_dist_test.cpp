// Every check of a transport over NCCL, one GPU a rank: mpirun -np 2 build/tests/nccl_dist_test. Returns 0 or 1 on
// every rank, or 77 where a host has fewer GPUs than ranks.
#include <chrono>
#include <cstdio>

#include "comm/device.h"
#include "comm/nccl.h"
#include "comm/world.h"
#include "runtime/cuda.h"
#include "tests/check_tools.h"
#include "tests/comm_checks.h"
#include "tests/dist/device_checks.h"
#include "tests/dist/staged_group.h"
#include "tests/operator_checks.h"

namespace baton {
namespace {

constexpr int kSkipped = 77;
constexpr int64_t kLargeBytes = (int64_t{128} << 20) + 12;

/// The checks of host tensors, staged through the device.
void run_staged(Group& group, Device device) {
  checks::StagedGroup staged(group, device);
  checks::all_reduce_is_exact(staged);
  checks::broadcast_and_gather(staged);
  checks::order_is_kept(staged, 1);
  checks::zero_bytes_send_nothing(staged);
  checks::scan_is_serial_composition(staged);
  checks::wrap_moves_the_last_to_the_first(staged);
  checks::together_agrees(staged);
  if (group.size() == 2) {
    checks::large_messages(staged, kLargeBytes);
    checks::shapes_that_differ_are_refused(staged);
  }
  EXPECT(staged.sent_by_group() == staged.traffic().sent_bytes, "the group counted {} bytes, {} were sent",
         staged.sent_by_group(), staged.traffic().sent_bytes);
}

/// Host tensors go through the host transport, and both are counted.
void run_host(Group& group) {
  const int64_t before = group.traffic().collective_bytes;
  EXPECT(all_reduce(group, int64_t{1}, ReduceOp::kSum) == group.size(), "a sum of host values is wrong");
  EXPECT(group.traffic().collective_bytes - before == 8, "a host value of 8 bytes was counted as {}",
         group.traffic().collective_bytes - before);
  EXPECT(broadcast(group, group.rank() == 0 ? "text" : "", 0) == "text", "a text arrived wrong");
  checks::together_agrees(group);
}

/// Messages one after another in one direction, none waited for until all are posted; every dtype.
void messages_keep_their_order(Group& group, Device device) {
  const cuda::OwnedStream own(device.index, false);
  const int last = group.size() - 1;
  if (last == 0 || (group.rank() != 0 && group.rank() != last)) return;
  std::vector<OwnedTensor> expected, on_device;
  std::vector<PendingPtr> pending;
  int64_t n = 1;
  for (const DType dtype : {DType::kUInt8, DType::kBFloat16, DType::kInt32, DType::kInt64, DType::kFloat32,
                            DType::kFloat64, DType::kUInt8, DType::kFloat32}) {
    n = n * 7 + 3;
    expected.emplace_back(Shape{n}, dtype);
    on_device.emplace_back(Shape{n}, dtype, device);
    auto* bytes = static_cast<uint8_t*>(expected.back().tensor.data);
    for (int64_t i = 0; i < expected.back().tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(i * 131 + n);
    if (group.rank() == 0)
      cuda::copy(bytes, on_device.back().tensor.data, expected.back().tensor.bytes(), own.stream());
  }
  for (const OwnedTensor& x : on_device)
    pending.push_back(group.rank() == 0 ? group.send(x, last, own.stream()) : group.recv(x, 0, own.stream()));
  for (const PendingPtr& p : pending) p->wait();
  group.synchronize(own.stream());
  for (const PendingPtr& p : pending) EXPECT(p->done(), "a message is not done after synchronize");
  for (size_t i = 0; i < expected.size(); ++i) {
    OwnedTensor came(expected[i].tensor.shape, expected[i].tensor.dtype);
    cuda::copy(on_device[i].tensor.data, came.tensor.data, came.tensor.bytes(), own.stream());
    cuda::synchronize(own.stream());
    EXPECT(checks::same_bits(came, expected[i]), "message {} is wrong", i);
  }
}

/// Last: afterwards no communicator of this process can be used.
void lost_rank_ends_the_wait(Group& group, Device device, int first) {
  checks::StagedGroup staged(group, device);
  checks::a_wait_ends_at_its_deadline(staged, first);
  abort_nccl_groups();
  const cuda::OwnedStream own(device.index, false);
  const OwnedTensor x({1}, DType::kFloat32, device);
  checks::expect_refusal([&] { group.all_reduce(x, ReduceOp::kSum, own.stream()); }, {"aborted"});
}

/// Memory that a receive still waits to write is released at once. Last, too.
void an_exception_ends_the_wait(World& world, Device device) {
  const auto group = make_nccl_group(world.group(), device, scan_options()), host = world.group();
  const auto start = std::chrono::steady_clock::now();
  if (world.rank() == 0)
    checks::expect_refusal(
        [&] {
          const cuda::OwnedStream own(device.index, false);
          const OwnedTensor x({1 << 20}, DType::kUInt8, device);
          group->recv(x, 1, own.stream())->wait();
          CHECK(false, "thrown while a receive waits");
        },
        {"thrown"});
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  EXPECT(waited.count() < 5, "memory was released only after {} s", waited.count());
  host->barrier();
  abort_nccl_groups();
}

void run_checks(World& world, Device device) {
  auto scan = make_nccl_group(world.group(), device, scan_options());
  auto gradients = make_nccl_group(world.group(), device, gradient_options());
  for (Group* group : {scan.get(), gradients.get()}) {
    group->set_deadline(60);
    run_host(*group);
    run_staged(*group, device);
    checks::device_scan_is_serial_composition(*group, device);
    messages_keep_their_order(*group, device);
  }
  checks::operator_has_the_bits_of_simulated_ranks(*scan, cuda::OwnedStream(device.index, false).stream());
  // Made and ended in good order beside the others, as a second job would.
  make_nccl_group(world.split(world.rank() % 2), device, {"part", false, 2});
  scan->barrier();
  if (world.size() == 2) {
    lost_rank_ends_the_wait(*scan, device, 0);
    scan.reset(), gradients.reset();  // aborted: every wait of this process would report them
    an_exception_ends_the_wait(world, device);
  }
  if (world.rank() == 0) std::printf("NCCL %s, %d ranks: every check holds\n", nccl_version().c_str(), world.size());
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::World world(&argc, &argv);
  const auto group = world.group();
  group->set_deadline(60);
  baton::Device device;
  try {
    device = baton::select_device("cuda", world, *group);
  } catch (const baton::Error& e) {
    if (world.rank() == 0) std::fprintf(stderr, "skipped: %s\n", e.what());
    return baton::kSkipped;
  }
  try {
    baton::run_checks(world, device);
  } catch (const baton::Error& e) {
    std::fprintf(stderr, "rank %d of %d: %s\n", world.rank(), world.size(), e.describe().c_str());
    world.abort(1);
  }
  return 0;
}
