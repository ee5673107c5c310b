// Which device a rank computes on.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"

namespace baton {

/// What a rank sees.
struct RankDevices {
  std::string host;
  int local_rank = 0, local_size = 1;
  int num_devices = 0;
  std::string uuid;  // of device local_rank % num_devices
};

/// Pure: cpu or a device for rank `rank` of `all`, the same decision on every rank. run_device: auto (cuda where every
/// rank sees a device), cuda or cpu. Throws an input error where cuda is asked for and cannot be had, and where two
/// ranks of a host would share a device.
Device choose_device(const std::string& run_device, bool has_cuda, const std::vector<RankDevices>& all, int rank);

/// Collective over the world's group: what every rank sees. Without look_for_devices no driver is woken.
std::vector<RankDevices> gather_devices(const World& world, Group& group, bool look_for_devices);

/// Collective over the world's group: choose_device over all ranks; a CUDA device becomes current in this thread.
Device select_device(const std::string& run_device, const World& world, Group& group);

std::string host_name();
bool build_has_cuda();
/// The device's own identity, which two processes can compare; empty without one.
std::string device_uuid(int index);
/// How two devices of this process reach each other, as far as the runtime tells: "NVLink", "PCIe peer
/// access", "no peer access".
std::string link_between(int index, int other);

}  // namespace baton
