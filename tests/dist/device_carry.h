// A carry on the device, for tests of the scan: leaving = G * entering + S, G and S known from rank and layer.
#pragma once

#include "runtime/stream.h"

namespace baton::checks {

/// Every block first waits this long, so that whoever reads too early sees what was there before.
void advance_on_device(int rank, int layer, const Tensor& entering, const Tensor& leaving, int64_t delay_ns,
                       const Stream& stream);

}  // namespace baton::checks
