// bfloat16 on the host: the upper half of a float32, rounded to nearest even.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/tensor.h"

namespace baton {

struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float x) {
    const auto u = std::bit_cast<uint32_t>(x);
    // A NaN keeps its sign and becomes quiet; rounding could carry it into an infinity.
    const bool is_nan = (u & 0x7fffffffU) > 0x7f800000U;
    bits = static_cast<uint16_t>(is_nan ? (u >> 16) | 0x40U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
  /// By way of float32, as on a GPU.
  explicit BFloat16(double x) : BFloat16(static_cast<float>(x)) {}
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }
};

template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::kBFloat16;
}

}  // namespace baton
