// What walks there are (linear_attention_walk.cuh), and what each has in shared memory.
#pragma once

#include <type_traits>

#include "kernels/cuda/linear_attention_decay.cuh"
#include "kernels/cuda/linear_attention_products.cuh"
#include "kernels/linear_attention_walk.h"

namespace baton::cuda::attention {

/// kStates: no `out`, either order. kGradients: two reversed walks, dv and dk, each by half of the warps; the tiles are
/// the same, what is own, update and read is not (own and update change places). ..Sums: the same as those without the
/// word, with what the gradient of scalar gates takes (linear_attention_walk_sums.cuh). kFused..: the same as those
/// without the word, of vector gates, whose decayed tiles and scores other warps of the block make
/// (linear_attention_fused.cuh).
enum class WalkKind {
  kStates,
  kForward,
  kReversed,
  kGradients,
  kForwardSums,
  kGradientsSums,
  kFusedStates,
  kFusedForward,
  kFusedReversed
};

/// kOwnTiles: own channels of a block / 64; kTiles: other channels / 64; kChannels: decays have (key) channels.
template <WalkKind kKind, bool kChannels, int kOwnTiles, int kTiles>
struct WalkTraits {
  static constexpr bool kFused = kKind >= WalkKind::kFusedStates;
  static constexpr bool kRead = kKind != WalkKind::kStates && kKind != WalkKind::kFusedStates;
  static constexpr bool kSums = kKind == WalkKind::kForwardSums || kKind == WalkKind::kGradientsSums;
  static constexpr int kSides = kKind == WalkKind::kGradients || kKind == WalkKind::kGradientsSums ? 2 : 1;
  static constexpr bool kBack = kKind == WalkKind::kReversed || kSides == 2 || kKind == WalkKind::kFusedReversed;
  static constexpr int kOwn = kOwnTiles * kTile, kOther = kTiles * kTile;
  static constexpr int kWarps = kOwn / 16, kNumThreads = 32 * kWarps * kSides;  // kWarps: of a side
  static constexpr bool kSmall = kTiles == 1 && kNumThreads < kThreads;
  static constexpr int kBlocks = kTiles == 4 || kNumThreads > kThreads ? 1 : kSmall ? 3 : 2;  // on a multiprocessor
  static constexpr bool kFetch = kWarpgroups && !kChannels;                                   // tiles come by maps
  static constexpr bool kShared = kChannels && kTiles == 4 && !kFused;  // on Hopper: linear_attention_shared.cuh
  static constexpr bool kRests = kBack && (kFused || kShared);          // what rounding leaves of scores is read, too
  static constexpr int kStages = kFused ? 3 : walk_stages(kOther, kChannels, kRead);  // chunks that there is room for
  // Tiles of a chunk, in this order: own, update, read, the other side's read; scores, their rests. After all stages:
  // scores that the walk makes, outputs of both sides.
  static constexpr bool kScoresCome = kRead && kChannels && !kFused;
  static constexpr int kStageTiles =
      kOwnTiles + kTiles + (kRead ? kSides * kTiles : 0) + (kScoresCome ? kShared ? 2 : 1 : 0);
  struct ChannelTables {
    alignas(16) float whole[kStages][kOther];  // decay of a chunk
  };
  struct SharedTables : ChannelTables {
    Phases own[kStages], gathered[kStages];  // own channels are there; outputs are in their place
    struct {
      Phases there[kStages], left[kStages];  // in this block; by all blocks of the cluster
    } update, read;                          // scores and decays come with what updates the state
  };
  struct NumberTables {
    alignas(16) NumberDecay number;
    float inter[kChunk];                     // inter_t (linear_attention_walk.cuh)
    alignas(8) uint32_t own[kChunk / 2][2];  // w_j of two tokens: rounded to bfloat16; what that leaves, rounded
    Phases there[kStages];                   // a chunk's tiles, with kFetch
  };
  // By warps, over own channels; of two sides also over pairs: with later tokens by columns, earlier ones by rows.
  static constexpr int kSumRows = !kSums ? 0 : kWarps + (kSides == 2 ? kWarps / 4 + 4 : 0);
  struct SumTables : NumberTables {
    float sums[kSums ? kSumRows : 1][kChunk];
  };
  using Tables = std::conditional_t<
      kShared, SharedTables,
      std::conditional_t<kChannels, ChannelTables, std::conditional_t<kSums, SumTables, NumberTables>>>;
  static constexpr int kTableBytes = (sizeof(Tables) + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  static constexpr int kOutTiles = kSides == 2 ? 2 * kOwnTiles : 0;  // else outputs take the place of what is own
  static constexpr int kAnchorTiles = kSums && kSides == 2 ? kOwnTiles * kTiles : 0;
  static constexpr int kSharedBytes =
      kTableBytes +
      (kStages * kStageTiles + (kRead && !kScoresCome ? kSides : 0) + kOutTiles + kAnchorTiles) * kTileBytes;
  static_assert(kFused || kSharedBytes == (kSides == 2 ? gradient_walk_shared_bytes(kOwn, kSums)
                                                       : walk_shared_bytes(kOwn, kOther, kChannels, kRead, kSumRows)));
};

}  // namespace baton::cuda::attention
