#include "launch/compute.h"

#include "comm/device.h"
#include "comm/nccl.h"

namespace baton {
namespace {

int ranks_per_node(const World& ranks, Group& sp) {
  std::vector<int64_t> hosts(static_cast<size_t>(sp.size()));
  int64_t mine = ranks.host();
  const Tensor one{&mine, Shape{1}, DType::kInt64, {}}, all{hosts.data(), Shape{sp.size()}, DType::kInt64, {}};
  sp.all_gather(one, all, Stream{});
  return even_node_size(hosts);
}

}  // namespace

Compute::Compute(const std::string& run_device, World& ranks, Group& world_group, int sp_color, double deadline_s) {
  const Device device = select_device(run_device, ranks, world_group);
  world = ranks.group();
  sp = ranks.split(sp_color);
  for (Group* group : {world.get(), sp.get()}) group->set_deadline(deadline_s);
  stream.device = device;
  if (device.type == DeviceType::kCuda) {
    owned_stream = std::make_unique<cuda::OwnedStream>(device.index, false);
    stream = owned_stream->stream();
    world = make_nccl_group(std::move(world), device, gradient_options());
    sp = make_nccl_group(std::move(sp), device, scan_options());
  }
  sp->set_ranks_per_node(ranks_per_node(ranks, *sp));
}

OwnedTensor to_device(const Tensor& host, const Stream& stream) {
  OwnedTensor x(host.shape, host.dtype, stream.device);
  copy(host, x, stream);
  synchronize(stream);
  return x;
}

}  // namespace baton
