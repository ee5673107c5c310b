// GradientReduction: sums the flat gradient over all ranks, bucket by bucket, while backward goes on.
//
// Parameters lie in the order in which forward uses them, so backward ends the flat gradient from its last element to
// its first. A bucket is the stretch that has become final since the one before; where it begins follows from the
// parameter table alone, so every rank issues the same sums in the same order and the bits do not depend on what
// overlaps what. On a device the sums run beside backward; on the host each is done when it is begun.
#pragma once

#include <vector>

#include "comm/group.h"
#include "comm/topology.h"
#include "runtime/memory.h"

namespace baton {

class GradientReduction {
 public:
  /// Two H200 over NVLink move 4 MiB at 150 GB/s, 16 MiB at 236 and 256 MiB at 353 (2026-11): smaller buckets would
  /// waste the link, larger ones begin later and leave more for the end, which nothing hides.
  static constexpr int64_t kBucketBytes = int64_t{32} << 20;

  /// Whether the stretch of so many bytes that has become final, from element `first` on, is a bucket.
  static bool is_bucket(int64_t first, int64_t bytes, int64_t bucket_bytes = kBucketBytes) {
    return first == 0 || bytes >= bucket_bytes;
  }

  /// max_buckets: calls of final_from in a step.
  GradientReduction(Group& group, const Tensor& gradients, int64_t max_buckets, Arena& arena,
                    int64_t bucket_bytes = kBucketBytes);

  /// Before the last backward of an optimizer step.
  void start(const Stream& stream);
  /// Elements from `first` on are final: begins their sum once there are bucket_bytes of them, or where first is 0.
  void final_from(int64_t first, const Stream& stream);
  /// The streams of final_from wait for all sums; final_from(0) must have been called.
  void finish();

  /// The buckets to which this rank itself gave NaN or Inf. Waits for the stream.
  std::vector<Range> not_finite(const Stream& stream) const;

 private:
  Group& group_;
  Tensor gradients_, marks_;  // marks_ int32 [max_buckets]: 1 where a bucket was not finite before its sum
  int64_t bucket_bytes_;
  std::vector<Range> buckets_;  // begun so far
  std::vector<PendingPtr> sums_;
};

}  // namespace baton
