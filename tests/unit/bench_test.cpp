#include "launch/bench.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/shapes.h"
#include "tests/run_ranks.h"
#include "tests/unit/scratch_dir.h"

namespace baton {
namespace {

using testing::HasSubstr;

BenchOptions parse(std::vector<std::string> args) {
  args.insert(args.begin(), "bench");
  return parse_bench_options(parse_command_line(args, {}));
}

std::string refusal(const std::vector<std::string>& args) {
  try {
    parse(args);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInput);
    return error.describe();
  }
  return "accepted";
}

TEST(Bench, AllShapesUnlessSomeAreNamed) {
  EXPECT_EQ(parse({"kernels"}).cases.size(), std::size(kBenchmarkShapes));
  const BenchOptions some = parse({"kernels", "--shape", "vector_64k,tiny_fixed", "--dtype", "float64"});
  ASSERT_EQ(some.cases.size(), 2U);
  EXPECT_EQ(some.cases[0].shape.T, 65536);
  EXPECT_EQ(some.cases[1].shape.gate, GateKind::kFixed);
  EXPECT_EQ(some.dtype, DType::kFloat64);
}

TEST(Bench, LengthsAndGatesReplaceTheShapes) {
  const BenchOptions o =
      parse({"kernels", "--shape", "vector_4k,fixed_64k", "--tokens", "64,128", "--gate", "none,scalar"});
  ASSERT_EQ(o.cases.size(), 4U);  // both shapes become the same ones
  EXPECT_EQ(o.cases[1].shape.T, 128);
  EXPECT_EQ(o.cases[1].shape.gate, GateKind::kNone);
  EXPECT_EQ(o.cases[2].shape.gate, GateKind::kScalar);
}

TEST(Bench, BadFlagsAreNamed) {
  EXPECT_THAT(refusal({"matmul"}), HasSubstr("baton bench kernels, not matmul"));
  EXPECT_THAT(refusal({"kernels", "--shape", "tiny"}), HasSubstr("tiny is no shape; they are tiny_vector, "));
  EXPECT_THAT(refusal({"kernels", "--tokens", "64,0"}), HasSubstr("--tokens = 0: must be at least 1"));
  EXPECT_THAT(refusal({"kernels", "--repeat", "0"}), HasSubstr("--repeat = 0: must be at least 1"));
  EXPECT_THAT(refusal({"kernels", "--dtype", "bfloat16"}), HasSubstr("--dtype = bfloat16"));
  EXPECT_THAT(refusal({"kernels", "--gate", "some"}), HasSubstr("\"some\""));
  EXPECT_THAT(refusal({"kernels", "--threads", "-1"}), HasSubstr("--threads = -1"));
}

TEST(Bench, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(median({5}), 5);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
}

TEST(Bench, WritesWhatItMeasured) {
  const ScratchDir dir;
  BenchOptions o = parse({"kernels", "--shape", "small_vector", "--gate", "none,fixed,scalar,vector,bilinear",
                          "--tokens", "70", "--repeat", "1", "--out", dir.path("bench.json")});
  o.tokens = 210;
  run_ranks(2, [&](Group& group) { EXPECT_EQ(run_bench(o, group), ExitCode::kDone); });
  std::ifstream file(o.out);
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["ranks"], 2);
  ASSERT_EQ(json["cases"].size(), 5U);
  for (const auto& c : json["cases"]) {
    const auto &forward = c["forward"], &both = c["forward_backward"];
    EXPECT_GT(forward["us"], 0) << c;
    EXPECT_GT(both["us"], 0) << c;
    EXPECT_NEAR(forward["ns_per_token"], forward["us"].get<double>() * 1e3 / 70, 1e-6);
    // 4 heads of K 16 and V 32: 4 K V operations a token and head, three times that with backward.
    EXPECT_NEAR(forward["gflops"], 4e-3 * 70 * 4 * 16 * 32 / forward["us"].get<double>(), 1e-6);
    EXPECT_NEAR(both["gflops"], 12e-3 * 70 * 4 * 16 * 32 / both["us"].get<double>(), 1e-6);
  }
}

}  // namespace
}  // namespace baton
