#include "launch/tokens.h"

#include <gtest/gtest.h>

#include "tests/run_ranks.h"

namespace baton {
namespace {

constexpr int64_t kB = 2;

/// Element i of every tensor is i.
OwnedTensor numbered(const Shape& shape, DType dtype) {
  OwnedTensor x(shape, dtype);
  for (int64_t i = 0; i < shape.numel(); ++i) {
    if (dtype == DType::kInt32)
      x.tensor.as<int32_t>()[i] = static_cast<int32_t>(i);
    else
      x.tensor.as<double>()[i] = static_cast<double>(i);
  }
  return x;
}

std::vector<double> values(const Tensor& x) {
  if (x.dtype == DType::kInt32) return {x.as<int32_t>(), x.as<int32_t>() + x.numel()};
  return {x.as<double>(), x.as<double>() + x.numel()};
}

TEST(Tokens, CutTakesARangeOfEveryRow) {
  const OwnedTensor x = numbered({kB, 5, 3}, DType::kFloat64);
  const OwnedTensor cut = cut_tokens(x, {1, 3});
  EXPECT_EQ(cut.tensor.shape, (Shape{kB, 2, 3}));
  EXPECT_EQ(values(cut), (std::vector<double>{3, 4, 5, 6, 7, 8, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(cut_tokens(x, {2, 2}).tensor.shape, (Shape{kB, 0, 3}));
  EXPECT_EQ(values(cut_tokens(numbered({kB, 4}, DType::kInt32), {3, 4})), (std::vector<double>{3, 7}));
}

TEST(Tokens, PlaceIsTheReverseOfCut) {
  for (const Shape& shape : {Shape{kB, 7}, Shape{kB, 7, 3}, Shape{kB, 7, 2, 3}}) {
    const OwnedTensor x = numbered(shape, DType::kFloat64), back(shape, DType::kFloat64);
    for (int64_t r = 0; r < 3; ++r) {
      const Range range = shard_of(7, 3, r);
      place_tokens(cut_tokens(x, range), range, back);
    }
    EXPECT_EQ(values(back), values(x));
  }
}

TEST(Tokens, PlaceLeavesTheRestAlone) {
  const OwnedTensor whole(Shape{kB, 3}, DType::kInt32);
  place_tokens(numbered({kB, 1}, DType::kInt32), {2, 3}, whole);
  EXPECT_EQ(values(whole), (std::vector<double>{0, 0, 0, 0, 0, 1}));
}

TEST(Tokens, GatherJoinsTheShardsOnRankZero) {
  for (int ranks : {1, 2, 3, 8})  // with 8, some shards of 5 tokens are empty
    run_ranks(ranks, [](Group& group) {
      const OwnedTensor x = numbered({kB, 5, 2, 3}, DType::kFloat64);
      const OwnedTensor shard = cut_tokens(x, shard_of(5, group.size(), group.rank()));
      const OwnedTensor all = gather_tokens(group, shard, 5, {});
      if (group.rank() == 0) {
        EXPECT_EQ(all.tensor.shape, x.tensor.shape);
        EXPECT_EQ(values(all), values(x));
      } else {
        EXPECT_FALSE(all.tensor.defined());
      }
    });
}

TEST(Tokens, OtherRanksOfTensorsAreRefused) {
  EXPECT_THROW(cut_tokens(OwnedTensor(Shape{4}, DType::kInt32), {0, 1}), Error);
}

}  // namespace
}  // namespace baton
