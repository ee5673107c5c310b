#include "comm/topology.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(Topology, ShardsCoverTheWindowInOrder) {
  for (const int64_t n : {0, 1, 2, 7, 64, 1000, 1009})
    for (const int64_t P : {1, 2, 3, 5, 8, 17}) {
      int64_t next = 0;
      for (int64_t r = 0; r < P; ++r) {
        const Range shard = shard_of(n, P, r);
        EXPECT_EQ(shard.first, next);
        EXPECT_GE(shard.size(), n / P);
        EXPECT_LE(shard.size(), (n + P - 1) / P);
        next = shard.last;
      }
      EXPECT_EQ(next, n);
    }
}

TEST(Topology, ShardsAreThoseOfTheFormula) {
  EXPECT_EQ(shard_of(10, 3, 0), (Range{0, 3}));
  EXPECT_EQ(shard_of(10, 3, 1), (Range{3, 6}));
  EXPECT_EQ(shard_of(10, 3, 2), (Range{6, 10}));
  EXPECT_EQ(shard_of(2, 3, 0), (Range{0, 0}));
  const int64_t n = int64_t{1} << 50;
  EXPECT_EQ(shard_of(n, 1024, 1023), (Range{n / 1024 * 1023, n}));
}

TEST(Topology, RanksOfAnSpGroupAreNeighbours) {
  const Topology t = Topology::make(8, 5, 4);
  EXPECT_EQ(t.sp_size, 4);
  EXPECT_EQ(t.dp_size(), 2);
  EXPECT_EQ(t.dp_rank(), 1);
  EXPECT_EQ(t.sp_rank(), 1);
  EXPECT_EQ(t.dp_rank() * t.sp_size + t.sp_rank(), t.world_rank);
}

TEST(Topology, ZeroMeansAllRanks) {
  const Topology t = Topology::make(6, 5, 0);
  EXPECT_EQ(t.sp_size, 6);
  EXPECT_EQ(t.dp_size(), 1);
  EXPECT_EQ(t.sp_rank(), 5);
}

TEST(Topology, AnSpThatDoesNotDivideTheWorldIsTheUsersMistake) {
  for (const int sp : {3, 5, 16, -1}) {
    try {
      Topology::make(8, 0, sp);
      ADD_FAILURE() << "parallel.sp = " << sp << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kInput);
      EXPECT_NE(std::string(e.what()).find("parallel.sp = " + std::to_string(sp)), std::string::npos) << e.what();
    }
  }
}

TEST(Topology, EvenNodeSize) {
  EXPECT_EQ(even_node_size({7}), 1);
  EXPECT_EQ(even_node_size({0, 0, 0}), 3);
  EXPECT_EQ(even_node_size({0, 0, 2, 2, 4, 4}), 2);
  EXPECT_EQ(even_node_size({0, 1, 2}), 1);
  EXPECT_EQ(even_node_size({0, 0, 2}), 1);
  EXPECT_EQ(even_node_size({0, 0, 2, 2, 2, 2, 6, 7}), 1);
  EXPECT_EQ(even_node_size({0, 1, 0, 1}), 1);  // a host's ranks are apart
}

}  // namespace
}  // namespace baton
