#include "runtime/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

namespace baton {
namespace {

TEST(BufferTest, IsAlignedZeroAndMoves) {
  Buffer a(1000, {});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(static_cast<char*>(a.data())[i], 0);
  void* data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.bytes(), 1000);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(a.bytes(), 0);
  EXPECT_EQ(Buffer(0, {}).data(), nullptr);
}

/// Some tensors of odd sizes, in two groups.
std::vector<Tensor> lay_out(Arena& arena) {
  return {arena.tensor("parameters", {3, 5}, DType::kFloat32), arena.tensor("activations", {1}, DType::kUInt8),
          arena.tensor("activations", {0, 7}, DType::kFloat64), arena.tensor("parameters", {64}, DType::kFloat64)};
}

TEST(ArenaTest, MeasuringAndAllocatingAgree) {
  Arena measure(Device{});
  EXPECT_TRUE(measure.measuring());
  for (const Tensor& x : lay_out(measure)) EXPECT_EQ(x.data, nullptr);

  Arena arena(Device{}, measure.used_bytes());
  EXPECT_FALSE(arena.measuring());
  const std::vector<Tensor> tensors = lay_out(arena);
  EXPECT_EQ(arena.used_bytes(), measure.used_bytes());
  EXPECT_EQ(arena.bytes_by_group(), measure.bytes_by_group());
  EXPECT_EQ(arena.used_bytes(), 256 + 256 + 0 + 512);
  EXPECT_EQ(arena.bytes_by_group().at("parameters"), 768);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors[i].data) % 256, 0);
    std::memset(tensors[i].data, static_cast<int>(i + 1), static_cast<size_t>(tensors[i].bytes()));
  }
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t j = 0; j < tensors[i].bytes(); ++j)
      ASSERT_EQ(static_cast<unsigned char*>(tensors[i].data)[j], i + 1) << "tensors overlap";
  EXPECT_THROW(arena.tensor("activations", {1}, DType::kUInt8), Error);
}

TEST(ArenaTest, AnEmptyLayoutDoesNotMeasureAgain) {
  const Arena arena(Device{}, 0);
  EXPECT_FALSE(arena.measuring());
}

TEST(NumAllocations, CountsBuffers) {
  const int64_t before = num_allocations();
  const OwnedTensor x(Shape{2, 3}, DType::kFloat32), none(Shape{0}, DType::kFloat32);
  Arena arena(Device{}, 1000);
  arena.tensor("parameters", {100}, DType::kFloat32);
  EXPECT_EQ(num_allocations(), before + 2);
}

TEST(CopyTest, CopiesAndRefusesOtherShapes) {
  const OwnedTensor x(Shape{2, 3}, DType::kFloat32), y(Shape{2, 3}, DType::kFloat32), z(Shape{3, 2}, DType::kFloat32);
  for (int i = 0; i < 6; ++i) x.tensor.as<float>()[i] = static_cast<float>(i);
  copy(x, y, {});
  EXPECT_EQ(y.tensor.as<float>()[5], 5.0F);
  set_zero(y, {});
  EXPECT_EQ(y.tensor.as<float>()[5], 0.0F);
  EXPECT_THROW(copy(x, z, {}), Error);
  EXPECT_THROW(copy(x, OwnedTensor(Shape{2, 3}, DType::kInt32), {}), Error);
}

}  // namespace
}  // namespace baton
