// What a build without CUDA has in place of NCCL and devices.
#include "comm/device.h"
#include "comm/nccl.h"

namespace baton {

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Group>, Device, const NcclOptions&) {
  CHECK(false, "this build has no CUDA backend");
}

std::string nccl_version() { return ""; }

bool build_has_cuda() { return false; }
std::string device_uuid(int) { return ""; }
std::string link_between(int, int) { return ""; }

}  // namespace baton
