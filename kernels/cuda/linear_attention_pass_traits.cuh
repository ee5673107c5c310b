// Which passes there are (linear_attention_pass.cuh), and what each has in shared memory.
#pragma once

#include "kernels/cuda/linear_attention_pairs.cuh"
#include "kernels/cuda/linear_attention_products.cuh"

namespace baton::cuda::attention {

/// kOwn, kOther: that side's decays have channels. Neither: one number a token, on the keys.
template <Pass kPass, bool kOwn, bool kOther>
struct PassTraits {
  static constexpr bool kSpan = kPass == Pass::kSpanKeys;
  static constexpr bool kKeys = kPass == Pass::kKeys || kSpan;
  static_assert(!kSpan || !kOther);
  static constexpr bool kNumber = !kOwn && !kOther;
  static constexpr bool kDx = kPass != Pass::kValues || kOwn;
  static constexpr bool kDy = kPass != Pass::kOutput;
  static constexpr bool kGates = kOwn && kDy;
  static constexpr bool kSplit = kOwn && !kOther;   // where decays are mild, scores and what meets them keep 16 bits
  static constexpr bool kGroups = kSplit || kSpan;  // products of scores are made by warpgroups, on Hopper
  static constexpr int kMaxOther = 512;             // channels of the other side where its decays meet the anchors
  static constexpr int kSumWidth = kTile + 8;       // of a float32 tile: rows 8 banks apart

  struct Tables {
    float own[kChunk];
    struct {
      Phases own, there[2], left[2];  // what is of the own side; a step's tiles are there, are needed no more
    } fetches;                        // of spans
    ChannelSums own_sums, other_sums;
    alignas(8) float other_whole[kGates && kOther ? kMaxOther : 2];
    alignas(8) float anchor[kTile];
    float rows[kKeys && kNumber ? 2 : 1][2][kChunk];  // scalar gates: sums over channels, by column half
    alignas(16) unsigned char number[kNumber ? sizeof(NumberDecay) : 16];
  };
  // Bytes of shared memory, in this order.
  static constexpr int kTableBytes = (sizeof(Tables) + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
  static constexpr int kScoreBytes = kTileBytes;
  static constexpr int kXYBytes = 2 * kTileBytes;  // own x and y; while scores are made, the other side's
  // H, DH; x, y of two steps; of spans all of two steps.
  static constexpr int kStageBytes = (kSpan ? 8 : kOther ? 2 : 6) * kTileBytes;
  static constexpr int kLevelBytes = kOther ? kLevels * kTileBytes : 0;
  static constexpr int kClimbBytes = kOwn ? kTileBytes + 3 * kChunk * kSumWidth * 4 : 0;
  static constexpr int kGateBytes =  // of gates that are fetched
      kSpan && kOwn ? kChunk * kTile * sizeof(float) : 0;
  static constexpr int max_of(int a, int b) { return a > b ? a : b; }
  static constexpr int kWorkBytes = max_of(kStageBytes, max_of(kLevelBytes, kClimbBytes));
  static_assert(!kSpan || kTableBytes + kScoreBytes + kXYBytes + kWorkBytes <= 99 * 1024,
                "the least that walks run on");
  static int64_t num_tiles(int64_t dim) { return (dim + kTile - 1) / kTile; }
  static int64_t shared_bytes(const Arguments& a) {
    const int64_t resident = kOther ? (kDx + kDy) * num_tiles(kKeys ? a.V : a.K) * kTileBytes : 0;
    return kTableBytes + kScoreBytes + kXYBytes + kWorkBytes + (a.warpgroups ? kGateBytes : 0) + resident;
  }
  static bool fits(const Arguments& a, int64_t bytes) {
    if (kGates && kOther && (kKeys ? a.V : a.K) > kMaxOther) return false;
    return shared_bytes(a) <= bytes;
  }
};

}  // namespace baton::cuda::attention
