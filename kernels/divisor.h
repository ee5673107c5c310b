// Division by a number that is known before, as one multiplication. For both compilers.
#pragma once

#include <cstdint>

namespace baton {

/// Divides numbers below 65,536 by one of 1 to 65,535: exact, since the inverse is off by less than 1 in 2^32.
struct Divisor {
  uint32_t number, inverse;  // inverse: of 1 it would be 2^32, and is not used

  constexpr explicit Divisor(int64_t by)
      : number(static_cast<uint32_t>(by)),
        inverse(by == 1 ? 0 : static_cast<uint32_t>(((int64_t{1} << 32) + by - 1) / by)) {}
  constexpr uint32_t divide(uint32_t x) const {
    return number == 1 ? x : static_cast<uint32_t>(static_cast<uint64_t>(x) * inverse >> 32);
  }
};

}  // namespace baton
