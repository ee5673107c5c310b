// What a transport of device tensors must do beside tests/comm_checks.h.
#pragma once

#include "comm/group.h"

namespace baton::checks {

bool same_bits_on_device(const Tensor& a, const Tensor& b, const Stream& stream);

/// Chain scans and wraps in stream order, both directions, against the serial composition on one device, bitwise; the
/// host must not wait in them.
void device_scan_is_serial_composition(Group& group, Device device);

/// Layers of every gate kind and strategy: each rank's tensors have the bits of the same ranks simulated on its device,
/// eager and in a CUDA graph that was captured with other document starts.
void operator_has_the_bits_of_simulated_ranks(Group& group, Device device);

}  // namespace baton::checks
