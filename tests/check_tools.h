// What the checks share.
#pragma once

#include <cstring>

#include "runtime/memory.h"
#include "runtime/rng.h"

#define EXPECT(condition, ...) CHECK_CODE(::baton::ExitCode::kComparison, condition, __VA_ARGS__)

namespace baton::checks {

inline const Stream kHost{};

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
}

template <class T>
void fill_normal(const Tensor& x, uint64_t seed, uint64_t stream) {
  for (int64_t i = 0; i < x.numel(); ++i) x.as<T>()[i] = static_cast<T>(random_normal(seed, stream, i));
}

}  // namespace baton::checks
