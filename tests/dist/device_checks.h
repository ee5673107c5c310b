// What a transport of device tensors must do beside tests/comm_checks.h.
#pragma once

#include "comm/group.h"

namespace baton::checks {

bool same_bits_on_device(const Tensor& a, const Tensor& b, const Stream& stream);

/// Chain scans and wraps in stream order, both directions, against the serial composition on one device, bitwise; the
/// host must not wait in them.
void device_scan_is_serial_composition(Group& group, Device device);

}  // namespace baton::checks
