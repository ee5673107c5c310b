#include "launch/tokens.h"

#include <cstring>

namespace baton {
namespace {

/// Copies tokens between a shard and its place in the whole, in either direction.
template <class F>
void for_each_row(const Tensor& shard, Range range, const Tensor& whole, F&& move) {
  const int64_t B = whole.dim(0), T = whole.dim(1);
  if (shard.numel() == 0) return;
  const int64_t token_bytes = whole.bytes() / (B * T);
  for (int64_t b = 0; b < B; ++b)
    move(static_cast<char*>(shard.data) + b * range.size() * token_bytes,
         static_cast<char*>(whole.data) + (b * T + range.first) * token_bytes,
         static_cast<size_t>(range.size() * token_bytes));
}

Shape with_tokens(const Shape& s, int64_t T) {
  switch (s.rank()) {
    case 2:
      return {s[0], T};
    case 3:
      return {s[0], T, s[2]};
    case 4:
      return {s[0], T, s[2], s[3]};
    default:
      CHECK(false, "a tensor of tokens has 2 to 4 dimensions, not {}", s.rank());
  }
}

}  // namespace

OwnedTensor cut_tokens(const Tensor& whole, Range range) {
  OwnedTensor shard(with_tokens(whole.shape, range.size()), whole.dtype);
  for_each_row(shard, range, whole, [](char* part, const char* place, size_t n) { std::memcpy(part, place, n); });
  return shard;
}

void place_tokens(const Tensor& shard, Range range, const Tensor& whole) {
  for_each_row(shard, range, whole, [](const char* part, char* place, size_t n) { std::memcpy(place, part, n); });
}

OwnedTensor gather_tokens(Group& group, const Tensor& shard, int64_t T, const Stream& stream) {
  if (group.rank() > 0) {
    group.send(shard, 0, stream)->wait();
    return {};
  }
  OwnedTensor whole(with_tokens(shard.shape, T), shard.dtype);
  for (int r = 0; r < group.size(); ++r) {
    const Range range = shard_of(T, group.size(), r);
    if (r == 0) {
      place_tokens(shard, range, whole);
      continue;
    }
    OwnedTensor part(with_tokens(shard.shape, range.size()), shard.dtype);
    group.recv(part, r, stream)->wait();
    place_tokens(part, range, whole);
  }
  return whole;
}

}  // namespace baton
