#include "runtime/dump.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "runtime/hdf5_file.h"
#include "runtime/memory.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kB = 3, kH = 2, kK = 2, kV = 2;

class DumpTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) /
           fmt::format("baton_dump_{}_{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  fs::path dir_;
};

/// A value that depends on batch row, global position and element alone.
float value(int64_t b, int64_t position, int64_t i) { return static_cast<float>(b * 100000 + position * 10 + i); }

/// Dumps as `P` ranks would: windows of `window` tokens, the batch in two micro-batches, and /sp, which depends on P.
std::string dump(const std::string& dir, int64_t T_total, int64_t window, int64_t grid, int P) {
  const int64_t num_grid = num_grid_points(T_total, grid);
  std::vector<std::unique_ptr<DumpPart>> ranks;
  for (int r = 0; r < P; ++r) ranks.push_back(std::make_unique<DumpPart>(dir, 10, r));
  for (int64_t first = 0; first < T_total; first += window) {
    const int64_t n = std::min(window, T_total - first);
    for (int r = 0; r < P; ++r) {
      const int64_t begin = num_grid_points(first + r * n / P, grid);
      const int64_t count = num_grid_points(first + (r + 1) * n / P, grid) - begin;
      for (int64_t b = 0; b < kB; b += 2) {
        const int64_t rows = std::min<int64_t>(2, kB - b);
        const OwnedTensor state(Shape{rows, count, kH, kK, kV}, DType::kFloat32);
        for (int64_t i = 0; i < state.tensor.numel(); ++i) {
          const int64_t element = i % 8, point = i / 8 % count, row = i / 8 / count;
          state.tensor.as<float>()[i] = value(b + row, (begin + point) * grid, element);
        }
        ranks[r]->add("layer.0/state", {kB, num_grid, kH, kK, kV}, {b, begin, 0, 0, 0}, state);
      }
    }
  }
  for (int r = 0; r < P; ++r) {
    const OwnedTensor entering(Shape{1, kB, kH, kK, kV}, DType::kFloat64);
    for (int64_t i = 0; i < entering.tensor.numel(); ++i) entering.tensor.as<double>()[i] = r;
    ranks[r]->add("sp/layer.0/entering", {P, kB, kH, kK, kV}, {r, 0, 0, 0, 0}, entering);
    ranks[r]->close();
  }
  return commit_dump(dir, {10, grid, T_total}, P);
}

TEST_F(DumpTest, RankCountDoesNotShow) {
  for (const auto& [T_total, window, grid] :
       {std::array<int64_t, 3>{40, 40, 4}, {41, 13, 4}, {7, 7, 64}, {64, 16, 1}}) {
    for (int P : {1, 2, 3, 5, 8}) {
      const std::string path = dump(dir_, T_total, window, grid, P);
      EXPECT_EQ(path, (dir_ / "step-00000010.h5").string());
      const Hdf5File file(path, Hdf5File::Mode::kRead);
      const int64_t num_grid = (T_total - 1) / grid + 1;
      const OwnedTensor state(Shape{kB, num_grid, kH, kK, kV}, DType::kFloat32);
      file.read("/layer.0/state", state);
      const float* x = state.tensor.as<float>();
      int64_t wrong = 0;
      for (int64_t b = 0; b < kB; ++b)
        for (int64_t g = 0; g < num_grid; ++g)
          for (int64_t i = 0; i < 8; ++i) wrong += *x++ != value(b, g * grid, i);
      EXPECT_EQ(wrong, 0) << "T_total " << T_total << ", P " << P;

      EXPECT_EQ(file.shape("/sp/layer.0/entering"), (Shape{P, kB, kH, kK, kV}));
      const OwnedTensor entering(Shape{P, kB, kH, kK, kV}, DType::kFloat64);
      file.read("/sp/layer.0/entering", entering);
      EXPECT_EQ(entering.tensor.as<double>()[entering.tensor.numel() - 1], P - 1);
      EXPECT_EQ(file.list("/"), (std::vector<std::string>{"layer.0", "sp"}));
      EXPECT_EQ(file.read_int("/", "step"), 10);
      EXPECT_EQ(file.read_int("/", "grid"), grid);
      EXPECT_EQ(file.read_int("/", "T_total"), T_total);
      EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 1) << "parts are left";
    }
  }
}

TEST_F(DumpTest, BFloat16StaysAsItIs) {
  const OwnedTensor x(Shape{2, 1}, DType::kBFloat16), y(Shape{2, 1}, DType::kBFloat16);
  const uint16_t bits[] = {0x3f80, 0xc0a1};
  std::memcpy(x.tensor.data, bits, sizeof bits);
  DumpPart part(dir_, 3, 0);
  part.add("layer.1/gate", {2, 1}, {0, 0}, x);
  part.close();
  Hdf5File(commit_dump(dir_, {3, 1, 1}, 1), Hdf5File::Mode::kRead).read("layer.1/gate", y);
  EXPECT_EQ(std::memcmp(y.tensor.data, bits, sizeof bits), 0);
}

/// The message with which the dump of one part with these blocks of a [4] dataset is refused.
std::string refusal(const fs::path& dir, const std::vector<std::array<int64_t, 2>>& blocks, int num_parts = 1) {
  DumpPart part(dir, 1, 0);
  for (const auto& [start, count] : blocks) part.add("x", {4}, {start}, OwnedTensor(Shape{count}, DType::kFloat32));
  part.close();
  try {
    commit_dump(dir, {1, 1, 4}, num_parts);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(DumpTest, BlocksMustFillADataset) {
  const std::string path = dir_ / "step-00000001.h5";
  EXPECT_EQ(refusal(dir_, {{0, 4}}), "accepted");
  EXPECT_EQ(refusal(dir_, {{0, 2}, {3, 1}}), path + ": 1 elements of /x were not dumped, or (below 0) twice");
  EXPECT_EQ(refusal(dir_, {{0, 3}, {2, 2}}), path + ": -1 elements of /x were not dumped, or (below 0) twice");
  EXPECT_NE(refusal(dir_, {{2, 3}}).find("is outside dataset /x of shape [4]"), std::string::npos);
  EXPECT_NE(refusal(dir_, {{0, 4}}, 2).find("part-00001 cannot be opened"), std::string::npos);
}

TEST_F(DumpTest, CutPartsAreRefused) {
  for (int64_t bytes : {150, 20}) {
    DumpPart part(dir_, 1, 0);
    part.add("x", {4}, {0}, OwnedTensor(Shape{4}, DType::kFloat32));
    part.close();
    fs::resize_file(dir_ / "step-00000001.h5.part-00000", static_cast<uintmax_t>(bytes));
    EXPECT_THROW(commit_dump(dir_, {1, 1, 4}, 1), Error);
    EXPECT_FALSE(fs::exists(dir_ / "step-00000001.h5"));
  }
}

}  // namespace
}  // namespace baton
