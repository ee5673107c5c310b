#include "model/gradient_reduction.h"

#include "kernels/elementwise.h"

namespace baton {

GradientReduction::GradientReduction(Group& group, const Tensor& gradients, int64_t max_buckets, Arena& arena,
                                     int64_t bucket_bytes)
    : group_(group),
      gradients_(gradients),
      marks_(arena.tensor("gradients", {max_buckets}, DType::kInt32)),
      bucket_bytes_(bucket_bytes) {}

void GradientReduction::start(const Stream& stream) {
  buckets_.clear();
  sums_.clear();
  set_zero(marks_, stream);
}

void GradientReduction::final_from(int64_t first, const Stream& stream) {
  const Range bucket{first, buckets_.empty() ? gradients_.numel() : buckets_.back().first};
  const Tensor x = gradients_.rows(bucket.first, bucket.size());
  if (!is_bucket(first, x.bytes(), bucket_bytes_)) return;
  mark_not_finite(x, marks_.rows(static_cast<int64_t>(buckets_.size()), 1), stream);
  buckets_.push_back(bucket);
  sums_.push_back(group_.begin_all_reduce(x, ReduceOp::kSum, stream));
}

void GradientReduction::finish() {
  CHECK(!buckets_.empty() && buckets_.back().first == 0, "gradients are summed before backward has ended");
  for (const PendingPtr& sum : sums_) sum->wait();
  sums_.clear();
}

std::vector<Range> GradientReduction::not_finite(const Stream& stream) const {
  std::vector<int32_t> marks(static_cast<size_t>(marks_.numel()));
  copy(marks_, {marks.data(), marks_.shape, marks_.dtype, {}}, stream);
  synchronize(stream);
  std::vector<Range> found;
  for (size_t i = 0; i < buckets_.size(); ++i)
    if (marks[i] != 0) found.push_back(buckets_[i]);
  return found;
}

}  // namespace baton
