// Counter-based random numbers: a value depends on (seed, stream, index) alone, so any rank count draws the same ones.
// Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace baton {

/// One Philox4x32-10 block.
inline std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                            static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

/// 64 random bits.
inline uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto c = philox(seed, stream, index);
  return (uint64_t{c[0]} << 32) | c[1];
}

/// Uniform in (0, 1), never either end.
inline double random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return (static_cast<double>(random_bits(seed, stream, index) >> 11) + 0.5) * 0x1p-53;
}

/// Standard normal, by Box-Muller.
inline double random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto c = philox(seed, stream, index);
  const double u = (static_cast<double>(((uint64_t{c[0]} << 32) | c[1]) >> 11) + 0.5) * 0x1p-53;
  const double w = (static_cast<double>(((uint64_t{c[2]} << 32) | c[3]) >> 11) + 0.5) * 0x1p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * w);
}

}  // namespace baton
