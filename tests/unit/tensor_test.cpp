#include "runtime/tensor.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <vector>

namespace baton {
namespace {

TEST(ShapeTest, CountsAndPrints) {
  const Shape shape{2, 72, 3, 8};
  EXPECT_EQ(shape.rank(), 4);
  EXPECT_EQ(shape.numel(), 3456);
  EXPECT_EQ(shape.str(), "[2, 72, 3, 8]");
  EXPECT_EQ(shape.with_rows(5), (Shape{5, 72, 3, 8}));
  EXPECT_NE(shape, (Shape{2, 72, 3}));
  EXPECT_EQ(Shape(std::vector<int64_t>{2, 72, 3, 8}), shape);
  EXPECT_EQ(Shape().numel(), 0);
  EXPECT_EQ((Shape{4, 0, 3}).numel(), 0);
}

TEST(ShapeTest, RefusesWhatIsNoShape) {
  EXPECT_THROW((Shape{1, 2, 3, 4, 5, 6}), Error);
  EXPECT_THROW((Shape{3, -1}), Error);
}

TEST(ShapeTest, CountsBeyond32BitsAndRefusesBeyond64) {
  EXPECT_EQ((Shape{1 << 20, 1 << 20, 1 << 20}).numel(), int64_t{1} << 60);
  EXPECT_THROW((void)(Shape{1 << 20, 1 << 20, 1 << 20, 8}).numel(), Error);
}

TEST(TensorTest, RowsAndViewsShareMemory) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0F);
  const Tensor x{values.data(), {4, 3, 2}, DType::kFloat32, {}};
  EXPECT_EQ(x.bytes(), 96);
  const Tensor rows = x.rows(1, 2);
  EXPECT_EQ(rows.shape, (Shape{2, 3, 2}));
  EXPECT_EQ(rows.as<float>(), values.data() + 6);
  EXPECT_EQ(x.rows(4, 0).numel(), 0);
  const Tensor view = rows.view({12});
  EXPECT_EQ(view.as<float>()[11], 17.0F);
  EXPECT_THROW(x.rows(3, 2), Error);
  EXPECT_THROW(x.rows(-1, 2), Error);
  EXPECT_THROW(x.rows(1, std::numeric_limits<int64_t>::max()), Error);
  EXPECT_THROW(x.view({23}), Error);
}

TEST(TensorTest, TypesAreChecked) {
  double value = 1;
  const Tensor x{&value, {1}, DType::kFloat64, {}};
  EXPECT_EQ(*x.as<double>(), 1);
  EXPECT_THROW(x.as<float>(), Error);
  EXPECT_NO_THROW(check_tensor(x, "x", {1}, DType::kFloat64));
  EXPECT_THROW(check_tensor(x, "x", {1}, DType::kFloat32), Error);
  EXPECT_THROW(check_tensor(x, "x", {1, 1}, DType::kFloat64), Error);
  EXPECT_EQ(dispatch_float(DType::kFloat64, []<class T>() { return sizeof(T); }), 8);
  EXPECT_EQ(dispatch_float(DType::kFloat32, []<class T>() { return sizeof(T); }), 4);
  EXPECT_THROW(dispatch_float(DType::kBFloat16, []<class T>() { return sizeof(T); }), Error);
}

TEST(TensorTest, SizesAndNamesOfTypes) {
  const std::pair<DType, std::pair<int64_t, std::string>> all[] = {
      {DType::kFloat32, {4, "float32"}}, {DType::kFloat64, {8, "float64"}}, {DType::kBFloat16, {2, "bfloat16"}},
      {DType::kInt32, {4, "int32"}},     {DType::kInt64, {8, "int64"}},     {DType::kUInt8, {1, "uint8"}}};
  for (const auto& [dtype, expected] : all) {
    EXPECT_EQ(size_of(dtype), expected.first);
    EXPECT_EQ(to_string(dtype), expected.second);
  }
}

}  // namespace
}  // namespace baton
