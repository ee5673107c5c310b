// Which sizes walks over long spans take (kernels/cuda/linear_attention_walk.cuh), as pure functions that a build
// without CUDA has too. Includes nothing, so that both compilers can read it.
#pragma once

namespace baton {

/// Own channels of a block.
constexpr int walk_own(int own_dim) { return own_dim % 128 == 0 ? 128 : 64; }

/// Whether there is an instance for a side's own channels and all channels of the other side.
constexpr bool walk_exists(int own_dim, int other_dim) {
  return own_dim > 0 && own_dim % 64 == 0 &&
         (other_dim == 64 || other_dim == 128 || (other_dim == 256 && walk_own(own_dim) == 128));
}

/// Chunks whose tiles a block has room for. `channels`: decays have channels; `read`: it makes outputs.
constexpr int walk_stages(int other_dim, bool channels, bool read) {
  return channels && !read && other_dim == 256 ? 4 : 2;
}

/// Bytes of shared memory that a block takes: tiles of 64 x 64 bfloat16, and tables of decays. sum_rows: sums of a
/// chunk's tokens, for scalar gates.
constexpr int walk_shared_bytes(int own_dim, int other_dim, bool channels, bool read, int sum_rows = 0) {
  const int own = walk_own(own_dim) / 64, other = other_dim / 64, stages = walk_stages(other_dim, channels, read);
  const int tiles = stages * (own + other + (read ? other : 0) + (read && channels ? other == 4 ? 2 : 1 : 0)) +
                    (read && !channels ? 1 : 0);
  const int tables = channels ? stages * (other_dim * 4 + (other_dim == 256 ? 48 : 0)) : (12 + sum_rows) * 64 * 4 + 16;
  return tiles * 64 * 64 * 2 + (tables + 1023) / 1024 * 1024;
}

/// The same for a forward walk of vector gates that makes its decayed tiles itself, three chunks of them.
constexpr int fused_walk_shared_bytes(int own, int other, bool read) {
  const int tiles = 3 * (own / 64 + other / 64 * (read ? 2 : 1)) + (read ? 1 + 8 : 0);
  const int walk_tables = (3 * other * 4 + 1023) / 1024 * 1024, maker_tables = 2 * (other / 64) * 2048 + 64 * 4 + 64;
  return tiles * 64 * 64 * 2 + walk_tables + (maker_tables + 1023) / 1024 * 1024;
}
/// Whether there is one, for devices with warpgroups. Decayed tiles are made again for every tile of own channels, so
/// there may be two of them at most.
constexpr bool fused_walk_exists(int key_dim, int value_dim) {
  return key_dim == 128 && (value_dim == 128 || value_dim == 256);
}
static_assert(fused_walk_shared_bytes(128, 128, true) <= 227 * 1024, "what a block of Hopper may have");

/// The same for one that makes dv and dk at once; keys and values have `dim` channels, one number a token.
constexpr int gradient_walk_shared_bytes(int dim, bool sums) {
  const int side = dim / 64;
  return walk_shared_bytes(dim, dim, false, true, sums ? dim / 16 + side + 4 : 0) +
         (4 * side + 1 + (sums ? side * side : 0)) * 64 * 64 * 2;
}

/// Whether there is one.
constexpr bool gradient_walk_exists(int key_dim, int value_dim) {
  return key_dim == value_dim && (key_dim == 64 || key_dim == 128);
}

/// For the gradient of scalar gates states meet their gradients at a walk's anchors: where it begins, after every
/// segment of so many chunks, and where it ends. The length is what the errors of rounded sums between allow.
constexpr int kSegment = 4;
constexpr long long walk_segments(long long chunks_per_walk) { return (chunks_per_walk + kSegment - 1) / kSegment; }

}  // namespace baton
