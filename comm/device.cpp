#include "comm/device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/cuda.h"
#include "runtime/memory.h"

namespace baton {
namespace {

/// RankDevices as it travels.
struct Wire {
  std::array<char, 128> host{}, uuid{};
  int32_t local_rank = 0, local_size = 0, num_devices = 0;
};

void put(const std::string& text, std::array<char, 128>& into) {
  std::memcpy(into.data(), text.data(), std::min(text.size(), into.size() - 1));
}

std::vector<RankDevices> gather(const RankDevices& mine, Group& group) {
  std::vector<Wire> all(static_cast<size_t>(group.size()));
  Wire& here = all[group.rank()];
  put(mine.host, here.host);
  put(mine.uuid, here.uuid);
  here.local_rank = mine.local_rank;
  here.local_size = mine.local_size;
  here.num_devices = mine.num_devices;
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Wire));
  const Tensor out{all.data(), Shape{group.size(), kBytes}, DType::kUInt8, {}};
  group.all_gather(out.rows(group.rank(), 1), out, Stream{});
  std::vector<RankDevices> ranks;
  for (const Wire& w : all) ranks.push_back({w.host.data(), w.local_rank, w.local_size, w.num_devices, w.uuid.data()});
  return ranks;
}

/// The first rank that would share its device with another of its host, or -1.
int first_sharing(const std::vector<RankDevices>& all) {
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = a + 1; b < all.size(); ++b)
      if (all[a].host == all[b].host && all[a].uuid == all[b].uuid) return static_cast<int>(a);
  return -1;
}

}  // namespace

Device choose_device(const std::string& run_device, bool has_cuda, const std::vector<RankDevices>& all, int rank) {
  CHECK_INPUT(run_device == "auto" || run_device == "cuda" || run_device == "cpu",
              "run.device = {}: it must be auto, cuda or cpu", run_device);
  const auto bare = std::find_if(all.begin(), all.end(), [](const RankDevices& r) { return r.num_devices == 0; });
  if (run_device == "cpu" || (run_device == "auto" && (!has_cuda || bare != all.end()))) return {};
  CHECK_INPUT(has_cuda, "run.device = cuda: this build has no CUDA backend; configure with -DBATON_CUDA=ON");
  CHECK_INPUT(bare == all.end(), "run.device = cuda: host {} has no GPU that rank {} sees", bare->host,
              bare - all.begin());
  if (const int shared = first_sharing(all); shared >= 0) {
    const RankDevices& r = all[shared];
    CHECK_INPUT(false,
                "run.device = {}: host {} has {} GPU{} for {} ranks; start one rank a GPU, or compute with "
                "--run.device cpu",
                run_device, r.host, r.num_devices, r.num_devices == 1 ? "" : "s", r.local_size);
  }
  const RankDevices& mine = all[rank];
  return {DeviceType::kCuda, mine.local_rank % mine.num_devices};
}

std::vector<RankDevices> gather_devices(const World& world, Group& group, bool look_for_devices) {
  RankDevices mine{host_name(), world.local_rank(), world.local_size(), 0, ""};
  if (look_for_devices) mine.num_devices = cuda::num_devices();
  if (mine.num_devices > 0) mine.uuid = device_uuid(mine.local_rank % mine.num_devices);
  return gather(mine, group);
}

Device select_device(const std::string& run_device, const World& world, Group& group) {
  const std::vector<RankDevices> all = gather_devices(world, group, run_device != "cpu");
  Device device;
  together(group, [&] {
    device = choose_device(run_device, build_has_cuda(), all, group.rank());
    if (device.type == DeviceType::kCuda) cuda::set_device(device.index);
  });
  return device;
}

std::string host_name() {
  std::array<char, 128> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace baton
