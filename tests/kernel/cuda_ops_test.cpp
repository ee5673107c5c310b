// Memory, copies, streams and events on a device; conversions; a tensor of more than 2^31 elements.
#include "tests/kernel/cuda_test.h"

namespace baton {
namespace {

TEST(CudaMemory, ReleaseUnderAnExceptionAbandonsWhatWaits) {
  int num_abandoned = 0;
  cuda::set_watch({[](double) {}, [&] { ++num_abandoned; }});
  try {
    const Buffer a(1000, kGpu);
    throw Error(ExitCode::kTransport, "thrown");
  } catch (const Error&) {
    EXPECT_EQ(num_abandoned, 1);
  }
  Buffer(1000, kGpu);
  EXPECT_EQ(num_abandoned, 1);
  cuda::set_watch({});
}

TEST(CudaMemory, IsZeroMovesAndCounts) {
  const int64_t before = cuda::num_allocations();
  Buffer a(1000, kGpu);
  EXPECT_EQ(cuda::num_allocations(), before + 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0);
  void* data = a.data();
  const Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  const OwnedTensor bytes({1000}, DType::kUInt8);
  std::memset(bytes.tensor.data, 7, 1000);
  copy(Tensor{b.data(), {1000}, DType::kUInt8, kGpu}, bytes, gpu_stream());
  synchronize(gpu_stream());
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(bytes.tensor.as<uint8_t>()[i], 0);
  EXPECT_GT(cuda::device_memory(0).total, cuda::device_memory(0).free);
  EXPECT_THROW(Buffer(int64_t{1} << 50, kGpu), Error);
  EXPECT_NO_THROW(Buffer(1, kGpu)) << "a refused allocation must leave no error behind";
}

TEST(CudaMemory, CopiesInEveryDirection) {
  const auto x = random_tensor<float>({1000, 7}, 1);
  const OwnedTensor on_device = to_device(x), other(x.tensor.shape, kF32, kGpu);
  copy(on_device, other, gpu_stream());
  EXPECT_TRUE(same_bytes(to_host(other), x));
  const Tensor middle = other.tensor.rows(3, 5);
  set_zero(middle, gpu_stream());
  const OwnedTensor back = to_host(other);
  for (int i = 0; i < 35; ++i) EXPECT_EQ(back.tensor.as<float>()[3 * 7 + i], 0);
  EXPECT_TRUE(same_bytes(back.tensor.rows(8, 992), x.tensor.rows(8, 992)));
  EXPECT_TRUE(same_bytes(back.tensor.rows(0, 3), x.tensor.rows(0, 3)));
  EXPECT_THROW(copy(on_device, x, Stream{}), Error);
  EXPECT_THROW(set_zero(on_device, Stream{}), Error);
}

TEST(CudaStreams, EventsOrderThem) {
  const cuda::OwnedStream first(0, false), second(0, true);
  const Shape shape{int64_t{64} << 20};
  const OwnedTensor a(shape, kF32, kGpu), b(shape, kF32, kGpu), one = to_device(int_tensor<float>({1}, {1}));
  copy(one, a.tensor.rows(shape[0] - 1, 1), gpu_stream());
  synchronize(gpu_stream());
  cuda::Event event;
  // a doubles 20 times on one stream; the other must see the end of it.
  for (int i = 0; i < 20; ++i) add_scaled(a, 1.0, a, first.stream());
  event.record(first.stream());
  event.wait_on(second.stream());
  copy(a, b, second.stream());
  synchronize(second.stream());
  EXPECT_TRUE(event.done());
  EXPECT_EQ(to_host(b.tensor.rows(shape[0] - 1, 1)).tensor.as<float>()[0], 1048576.0F);
}

TEST(CudaConvert, EveryPairOfDtypes) {
  for (int64_t n : {0, 1, 7, 4099}) {
    auto values = random_tensor<double>({n}, 1, 100);
    if (n > 5) {
      values.tensor.as<double>()[1] = std::numeric_limits<double>::infinity();
      values.tensor.as<double>()[2] = 3.4e38;      // infinite in bfloat16
      values.tensor.as<double>()[3] = 1.00390625;  // half way between two bfloat16 numbers
      values.tensor.as<double>()[4] = 1e-40;       // subnormal
    }
    for (DType from : {kF32, kBF16, kF64})
      for (DType to : {kF32, kBF16, kF64}) {
        const OwnedTensor x = converted(values, from), on_device = to_device(x), y({n}, to, kGpu);
        convert(on_device, y, gpu_stream());
        EXPECT_TRUE(same_bytes(to_host(y), converted(x, to))) << to_string(from) << " to " << to_string(to);
      }
  }
}

// 4.3 GB; indices of 32 bits would wrap before the end.
TEST(CudaLarge, MoreThan31BitsOfElements) {
  const int64_t n = (int64_t{1} << 31) + 4099;
  const OwnedTensor x({n}, kBF16, kGpu), y({n}, kBF16, kGpu);
  const std::vector<int64_t> places{0, (int64_t{1} << 31) - 50, n - 100};
  std::vector<Operand> pieces;
  for (int64_t place : places) {
    pieces.push_back(random_operand({100}, kBF16, static_cast<uint64_t>(place)));
    copy(pieces.back().device, x.tensor.rows(place, 100), gpu_stream());
  }
  activation_forward(Activation::kSilu, x, y, gpu_stream());
  double squares = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    squares += sum_of_squares(pieces[i].host, Stream{});
    Operand out = nan_operand({100}, kBF16);
    activation_forward(Activation::kSilu, pieces[i].host, out.host, Stream{});
    copy(y.tensor.rows(places[i], 100), out.device, gpu_stream());
    expect_close(out, std::to_string(places[i]));
  }
  EXPECT_NEAR(sum_of_squares(x, gpu_stream()), squares, 1e-9 * squares);
  EXPECT_TRUE(all_finite(y, gpu_stream()));
  const OwnedTensor infinite = converted(int_tensor<double>({1}, {0}), kF64);
  infinite.tensor.as<double>()[0] = std::numeric_limits<double>::infinity();
  copy(to_device(converted(infinite, kBF16)), y.tensor.rows(n - 1, 1), gpu_stream());
  EXPECT_FALSE(all_finite(y, gpu_stream()));
}

}  // namespace
}  // namespace baton
