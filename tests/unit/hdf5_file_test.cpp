#include "runtime/hdf5_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/memory.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

class Hdf5FileTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) /
           fmt::format("baton_hdf5_{}_{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string path(const std::string& name) const { return dir_ / name; }

  fs::path dir_;
};

template <class T>
OwnedTensor iota(const Shape& shape, double first = 0) {
  OwnedTensor x(shape, dtype_of<T>());
  for (int64_t i = 0; i < shape.numel(); ++i) x.tensor.as<T>()[i] = static_cast<T>(first + static_cast<double>(i));
  return x;
}

/// The message of the error that f throws; its code must be `code`.
template <class F>
std::string error_of(F&& f, ExitCode code = ExitCode::kInput) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

template <class Stored, class Read>
void round_trip(const std::string& path) {
  const Shape shape{2, 3, 1, 2};
  const OwnedTensor x = iota<Stored>(shape);
  Hdf5File out(path, Hdf5File::Mode::kCreate);
  out.write("/a/b/x", x);
  out.close();
  const Hdf5File in(path, Hdf5File::Mode::kRead);
  EXPECT_EQ(in.shape("a/b/x"), shape);
  const OwnedTensor y(shape, dtype_of<Read>());
  in.read("/a/b/x", y);
  for (int64_t i = 0; i < shape.numel(); ++i) EXPECT_EQ(y.tensor.as<Read>()[i], static_cast<Read>(i));
}

TEST_F(Hdf5FileTest, ConvertsBetweenNumericTypes) {
  round_trip<double, double>(path("dd.h5"));
  round_trip<double, float>(path("df.h5"));
  round_trip<float, double>(path("fd.h5"));
  round_trip<int64_t, int32_t>(path("li.h5"));
  round_trip<int32_t, int64_t>(path("il.h5"));
  round_trip<uint8_t, float>(path("uf.h5"));
  round_trip<float, uint8_t>(path("fu.h5"));
}

TEST_F(Hdf5FileTest, StoresBFloat16AsTwoByteFloat) {
  const std::vector<float> values{0.0F, 1.0F, -2.5F, 0x1.02p-126F, 0x1.fep127F, INFINITY, -INFINITY, NAN};
  const Shape shape{static_cast<int64_t>(values.size())};
  const OwnedTensor x(shape, DType::kBFloat16);
  auto* bits = static_cast<uint16_t*>(x.tensor.data);
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t word = 0;
    std::memcpy(&word, &values[i], 4);
    bits[i] = static_cast<uint16_t>(word >> 16);
  }
  Hdf5File out(path("b.h5"), Hdf5File::Mode::kCreate);
  out.write("x", x);
  out.close();

  const Hdf5File in(path("b.h5"), Hdf5File::Mode::kRead);
  const OwnedTensor same(shape, DType::kBFloat16), wide(shape, DType::kFloat32);
  in.read("x", same);
  EXPECT_EQ(std::memcmp(same.tensor.data, x.tensor.data, static_cast<size_t>(x.tensor.bytes())), 0);
  in.read("x", wide);
  for (size_t i = 0; i + 1 < values.size(); ++i) EXPECT_EQ(wide.tensor.as<float>()[i], values[i]);
  EXPECT_TRUE(std::isnan(wide.tensor.as<float>()[values.size() - 1]));
}

TEST_F(Hdf5FileTest, KeepsAttributesAndListsNames) {
  Hdf5File out(path("a.h5"), Hdf5File::Mode::kCreate);
  out.write("/case/b/x", iota<float>({3}));
  out.write("/case/a", iota<float>({0, 4}));
  out.write_int("/", "vocab", int64_t{1} << 40);
  out.write_double("/case", "scale", 0.1);
  out.write_string("/case", "gate", "véctor");
  out.write_int("/state", "step", 7);
  out.close();

  const Hdf5File in(path("a.h5"), Hdf5File::Mode::kRead);
  EXPECT_EQ(in.read_int("/", "vocab"), int64_t{1} << 40);
  EXPECT_EQ(in.read_double("/", "vocab"), std::ldexp(1.0, 40));
  EXPECT_EQ(in.read_double("case", "scale"), 0.1);
  EXPECT_EQ(in.read_string("/case", "gate"), "véctor");
  EXPECT_EQ(in.read_int("state", "step"), 7);
  EXPECT_EQ(in.list("/"), (std::vector<std::string>{"case", "state"}));
  EXPECT_EQ(in.list("/case"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(in.is_group("/case/b"));
  EXPECT_FALSE(in.is_group("/case/a"));
  EXPECT_FALSE(in.exists("/no/such/path"));
  EXPECT_FALSE(in.has_attribute("/case", "none"));
  EXPECT_FALSE(in.has_attribute("/none", "gate"));
  EXPECT_EQ(in.shape("/case/a"), (Shape{0, 4}));
  in.read("/case/a", OwnedTensor(Shape{0, 4}, DType::kFloat32));
  EXPECT_EQ(error_of([&] { in.read_int("/case", "gate"); }), path("a.h5") + ": attribute gate must be an integer");
  EXPECT_EQ(error_of([&] { in.read_string("/", "none"); }), path("a.h5") + " has no attribute none at /");
}

TEST_F(Hdf5FileTest, NamesFileAndCause) {
  const std::string absent = path("absent.h5"), text = path("text.h5"), good = path("good.h5");
  EXPECT_EQ(error_of([&] { Hdf5File(absent, Hdf5File::Mode::kRead); }),
            absent + " cannot be read: No such file or directory");
  std::ofstream(text) << "not a number in sight";
  EXPECT_EQ(error_of([&] { Hdf5File(text, Hdf5File::Mode::kRead); }), text + " is not an HDF5 file");
  const std::string nowhere = path("no/such/dir/x.h5");
  EXPECT_NE(error_of([&] { Hdf5File(nowhere, Hdf5File::Mode::kCreate); }, ExitCode::kTransport).find("No such file"),
            std::string::npos);

  Hdf5File out(good, Hdf5File::Mode::kCreate);
  out.write("x", iota<float>({2, 3}));
  EXPECT_NE(error_of(
                [&] {
                  out.write("x", iota<float>({2, 3}));
                },
                ExitCode::kTransport)
                .find("already exists"),
            std::string::npos);
  out.close();
  const Hdf5File in(good, Hdf5File::Mode::kRead);
  const OwnedTensor y(Shape{3, 2}, DType::kFloat32);
  EXPECT_EQ(error_of([&] { in.read("x", y); }), good + ": dataset x has shape [2, 3], expected [3, 2]");
  EXPECT_EQ(error_of([&] { in.read("y", y); }), good + " has no dataset /y");
}

TEST_F(Hdf5FileTest, VirtualDatasetShowsPartsAndMissingOnesAsNaN) {
  for (int part = 0; part < 2; ++part) {
    Hdf5File file(path(fmt::format("part-{}.h5", part)), Hdf5File::Mode::kCreate);
    file.write("/p/x", iota<float>({2, 3}, part * 6));
    file.close();
  }
  Hdf5File index(path("index.h5"), Hdf5File::Mode::kCreate);
  index.write_virtual("/p/x", {5, 3}, DType::kFloat32,
                      {{"part-0.h5", 0, 2}, {"part-1.h5", 2, 2}, {"part-2.h5", 4, 1}, {"part-3.h5", 5, 0}});
  index.close();

  // Names are relative to the index, so that a directory may be moved.
  fs::create_directory(dir_ / "moved");
  for (const char* name : {"index.h5", "part-0.h5", "part-1.h5"}) fs::rename(dir_ / name, dir_ / "moved" / name);
  const Hdf5File in(path("moved/index.h5"), Hdf5File::Mode::kRead);
  const OwnedTensor x(Shape{5, 3}, DType::kFloat32);
  in.read("/p/x", x);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(x.tensor.as<float>()[i], static_cast<float>(i));
  for (int i = 12; i < 15; ++i) EXPECT_TRUE(std::isnan(x.tensor.as<float>()[i]));
}

TEST_F(Hdf5FileTest, EqualContentsAreEqualBytes) {
  std::string bytes[2];
  for (std::string& text : bytes) {
    Hdf5File file(path("x.h5"), Hdf5File::Mode::kCreate);
    file.write("/p/x", iota<double>({4, 5}));
    file.write_string("/p", "name", "x");
    file.close();
    std::ifstream in(path("x.h5"), std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(in), {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5 time stamps count seconds
  }
  EXPECT_FALSE(bytes[0].empty());
  EXPECT_TRUE(bytes[0] == bytes[1]);
}

TEST_F(Hdf5FileTest, ThreadsMayUseFilesAtOnce) {
  std::vector<std::jthread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = path(fmt::format("{}.h5", t));
        Hdf5File out(name, Hdf5File::Mode::kCreate);
        out.write("/x", iota<float>({7}, t));
        out.close();
        const OwnedTensor y(Shape{7}, DType::kFloat32);
        Hdf5File(name, Hdf5File::Mode::kRead).read("/x", y);
        good += y.tensor.as<float>()[6] == static_cast<float>(t + 6);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(good, 80);
}

}  // namespace
}  // namespace baton
