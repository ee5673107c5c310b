#include "runtime/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace baton {
namespace {

using Block = std::array<uint32_t, 4>;

// Known answers of Random123 (tests/kat_vectors, philox 4x32 10).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint64_t kOnes = ~uint64_t{0};
  EXPECT_EQ(philox(kOnes, kOnes, kOnes), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomTest, UniformMoments) {
  constexpr int kCount = 200000;
  double sum = 0, squares = 0, low = 1, high = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = random_uniform(7, 3, static_cast<uint64_t>(i));
    sum += u;
    squares += u * u;
    low = std::min(low, u);
    high = std::max(high, u);
  }
  // Five standard deviations of the mean of u and of u * u.
  EXPECT_NEAR(sum / kCount, 1.0 / 2, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kCount));
  EXPECT_GT(low, 0);
  EXPECT_LT(high, 1);
}

TEST(RandomTest, NormalMoments) {
  constexpr int kCount = 200000;
  double moments[5] = {};
  for (int i = 0; i < kCount; ++i) {
    const double x = random_normal(7, 4, static_cast<uint64_t>(i));
    for (int p = 1; p < 5; ++p) moments[p] += std::pow(x, p) / kCount;
  }
  // Five standard deviations: variances of x, x^2, x^3, x^4 are 1, 2, 15, 96.
  EXPECT_NEAR(moments[1], 0, 5 * std::sqrt(1.0 / kCount));
  EXPECT_NEAR(moments[2], 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(moments[3], 0, 5 * std::sqrt(15.0 / kCount));
  EXPECT_NEAR(moments[4], 3, 5 * std::sqrt(96.0 / kCount));
}

TEST(RandomTest, SeedStreamAndIndexAllCount) {
  std::set<uint64_t> seen;
  for (uint64_t seed : {0, 1, 2})
    for (uint64_t stream : {0, 1, 2})
      for (uint64_t index : {0, 1, 2}) seen.insert(random_bits(seed, stream, index));
  EXPECT_EQ(seen.size(), 27);
  EXPECT_EQ(random_bits(1, 2, 3), random_bits(1, 2, 3));
}

}  // namespace
}  // namespace baton
