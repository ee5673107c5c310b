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

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

constexpr Device kCpu{}, kGpu{DeviceType::kCuda, 0};

BenchOptions parse(std::vector<std::string> args, Device device = kCpu, const char* what = "kernels") {
  args.insert(args.begin(), {"bench", what});
  return parse_bench_options(parse_command_line(args, {}), device);
}

std::string refusal(const std::vector<std::string>& args, Device device = kCpu, const char* what = "kernels") {
  try {
    parse(args, device, what);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInput);
    return error.describe();
  }
  return "accepted";
}

std::vector<std::string> names(const BenchOptions& o) {
  std::vector<std::string> list;
  for (const AttentionShape& s : o.cases)
    list.push_back(fmt::format("{} {} {} x {}", shape_name(s), to_string(s.gate), s.B, s.T));
  return list;
}

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Bench, EachDeviceHasItsOwnCases) {
  const BenchOptions cpu = parse({}), gpu = parse({}, kGpu);
  EXPECT_EQ(cpu.cases.size(), 2 * std::size(kCpuBenchmarkShapes));
  EXPECT_EQ(cpu.dtype, DType::kFloat32);
  EXPECT_EQ(gpu.cases.size(), 3 * std::size(kGpuBenchmarkShapes));
  EXPECT_EQ(gpu.dtype, DType::kBFloat16);
  EXPECT_THAT(names(gpu), IsSupersetOf({"H4_K256_V512 vector 16 x 2048", "H16_K128_V128 fixed 1 x 32768"}));
}

TEST(Bench, HeadsGatesAndLengthsMultiply) {
  EXPECT_THAT(
      names(parse({"--shape", "H2_K8_V16,H4_K8_V8", "--gate", "none,scalar", "--tokens", "64,128", "--batch", "3"})),
      ElementsAre("H2_K8_V16 none 3 x 64", "H2_K8_V16 none 3 x 128", "H2_K8_V16 scalar 3 x 64",
                  "H2_K8_V16 scalar 3 x 128", "H4_K8_V8 none 3 x 64", "H4_K8_V8 none 3 x 128", "H4_K8_V8 scalar 3 x 64",
                  "H4_K8_V8 scalar 3 x 128"));
  // All of what is not named, each once.
  EXPECT_EQ(parse({"--shape", "H2_K8_V16", "--tokens", "64"}).cases.size(), 5U);
  EXPECT_THAT(names(parse({"--gate", "fixed", "--tokens", "64"})),
              ElementsAre("H4_K32_V64 fixed 1 x 64", "H2_K128_V128 fixed 1 x 64"));
  EXPECT_THAT(names(parse({"--gate", "all", "--shape", "H1_K8_V8", "--tokens", "524288"}, kGpu)),
              ElementsAre("H1_K8_V8 none 1 x 524288", "H1_K8_V8 fixed 1 x 524288", "H1_K8_V8 scalar 1 x 524288",
                          "H1_K8_V8 vector 1 x 524288", "H1_K8_V8 bilinear 1 x 524288"));
}

TEST(Bench, BadFlagsAreNamed) {
  EXPECT_THAT(refusal({"--shape", "tiny"}), HasSubstr("--shape = tiny: must be heads as in H4_K256_V512"));
  EXPECT_THAT(refusal({"--shape", "H4_K256_V512x"}), HasSubstr("--shape = H4_K256_V512x"));
  EXPECT_THAT(refusal({"--shape", "H0_K8_V8"}), HasSubstr("each number from 1 to 65536"));
  EXPECT_THAT(refusal({"--tokens", "64,0"}), HasSubstr("--tokens = 0: must be at least 1"));
  EXPECT_THAT(refusal({"--batch", "0"}), HasSubstr("--batch = 0: must be at least 1"));
  EXPECT_THAT(refusal({"--repeat", "0"}), HasSubstr("--repeat = 0: must be at least 1"));
  EXPECT_THAT(refusal({"--span", "100"}), HasSubstr("--span = 100: must be a multiple of 64"));
  EXPECT_THAT(refusal({"--dtype", "bfloat16"}), HasSubstr("--dtype = bfloat16: must be float32 or float64 on a CPU"));
  EXPECT_THAT(refusal({"--dtype", "float64"}, kGpu), HasSubstr("must be float32 or bfloat16 on a GPU"));
  EXPECT_THAT(refusal({"--gate", "some"}), HasSubstr("\"some\""));
  EXPECT_THAT(refusal({"--threads", "-1"}), HasSubstr("--threads = -1"));
  EXPECT_THAT(refusal({"--peak", "0"}), HasSubstr("--peak = 0: must be above 0"));
  EXPECT_THAT(refusal({"--graph"}), HasSubstr("--graph = true: a CPU has no CUDA graphs"));
}

TEST(Bench, OfMessagesIsOneSequence) {
  const BenchOptions cpu = parse({}, kCpu, "comm");
  EXPECT_TRUE(cpu.comm);
  EXPECT_EQ(cpu.cases.size(), std::size(kCpuBenchmarkShapes));
  EXPECT_THAT(names(parse({"--shape", "H4_K256_V512", "--gate", "vector"}, kGpu, "comm")),
              ElementsAre("H4_K256_V512 vector 1 x 16384"));
  EXPECT_THAT(refusal({}, kCpu, "com"), HasSubstr("baton bench com: must be kernels or comm"));
  EXPECT_THAT(refusal({"--stages"}, kCpu, "comm"), HasSubstr("--stages = true"));
}

// 32,768 tokens in bfloat16, counted by hand: q, k, v, o and float32 gates once; with backward also dout and gradients.
TEST(Bench, WorkIsThatOfEachTensorOnce) {
  const AttentionShape wide{1, 32768, 4, 256, 512, GateKind::kVector}, fixed{16, 2048, 16, 128, 128, GateKind::kFixed};
  const double tokens = 32768, heads = 4 * tokens;
  const BenchWork forward = forward_work(wide, DType::kBFloat16), backward = backward_work(wide, DType::kBFloat16);
  EXPECT_EQ(forward.bytes, tokens * (2 * 2048 + 2 * 4096 + 4096));
  EXPECT_EQ(backward.bytes, tokens * (4 * 2048 + 3 * 4096 + 2 * 4096));
  EXPECT_EQ(forward.operations, heads * (4 * 256 * 512 + 64 * (256 + 512)));
  EXPECT_EQ(backward.operations, heads * (10 * 256 * 512 + 64 * (3 * 256 + 2 * 512)));
  EXPECT_EQ(forward_work(fixed, DType::kBFloat16).bytes, tokens * 4 * 4096);
  EXPECT_EQ(backward_work(fixed, DType::kFloat32).bytes, tokens * 7 * 8192);
}

TEST(Bench, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(median({5}), 5);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
}

TEST(Bench, WritesWhatItMeasured) {
  const ScratchDir dir;
  BenchOptions o = parse(
      {"--shape", "H4_K16_V32", "--tokens", "70", "--repeat", "1", "--stages", "--json", dir.path("bench.jsonl")});
  o.tokens = 210;
  run_ranks(2, [&](Group& group) { EXPECT_EQ(run_bench(o, group), ExitCode::kDone); });
  const std::vector<nlohmann::json> lines = read_lines(o.json);
  ASSERT_EQ(lines.size(), 6U);  // one of the machine, one for each gate kind
  EXPECT_EQ(lines[0]["ranks"], 2);
  for (size_t i = 1; i < lines.size(); ++i) {
    const nlohmann::json& c = lines[i];
    // A state entering each of two chunks and one leaving, its gradients, and the chunks' decays.
    const int decays = c["gate"] == "bilinear" ? 16 + 32 : 16;
    EXPECT_NEAR(c["scratch_MiB"], 4 * (2 * 3 * 16 * 32 + 2 * decays) * 4 / 1048576.0, 1e-9) << c;
    ASSERT_EQ(c["stages"].size(), 6U);
    for (const auto& stage : c["stages"]) EXPECT_GT(stage["us"], 0) << c;
    for (const char* part : {"forward", "forward_backward"}) {
      const double us = c[part]["us"].get<double>();
      EXPECT_GT(us, 0) << c;
      EXPECT_NEAR(c[part]["ns/token"], us * 1e3 / 70, 1e-6);
      BenchWork work = forward_work(o.cases[i - 1], o.dtype);
      if (std::string(part) != "forward") {
        work.bytes += backward_work(o.cases[i - 1], o.dtype).bytes;
        work.operations += backward_work(o.cases[i - 1], o.dtype).operations;
      }
      EXPECT_NEAR(c[part]["GB/s"], 1e-3 * work.bytes / us, 1e-6);
      EXPECT_NEAR(c[part]["TFLOP/s"], 1e-6 * work.operations / us, 1e-9);
    }
    EXPECT_GT(c["forward_backward"]["us"], c["forward"]["us"]);
  }
}

TEST(Bench, WritesWhatMessagesTake) {
  const ScratchDir dir;
  const BenchOptions o = parse({"--shape", "H2_K8_V16", "--gate", "fixed,bilinear", "--tokens", "70", "--repeat", "1",
                                "--json", dir.path("comm.jsonl")},
                               kCpu, "comm");
  run_ranks(3, [&](Group& group) {
    EXPECT_EQ(run_comm_bench(o, {{3, group.rank(), 3}, &group, &group, {}}), ExitCode::kDone);
  });
  const std::vector<nlohmann::json> lines = read_lines(o.json);
  ASSERT_EQ(lines.size(), 4U);  // one of the machine, one of the gradients' sum, one for each gate kind
  EXPECT_EQ(lines[0]["ranks"], 3);
  EXPECT_NEAR(lines[1]["GB/s"], 1e-3 * 4 / 3 * lines[1]["bytes"].get<double>() / lines[1]["us"].get<double>(), 1e-6);
  const std::vector<std::string> names_of_strategies{"chain", "doubling", "all_gather", "hierarchical"};
  for (size_t i = 2; i < lines.size(); ++i) {
    const nlohmann::json& c = lines[i];
    EXPECT_EQ(c["state_bytes"], 4 * 2 * 8 * 16);
    EXPECT_EQ(c["carry_bytes"], 4 * 2 * (8 * 16 + (c["gate"] == "bilinear" ? 8 + 16 : 0)));
    EXPECT_EQ(c["spans"], 2);
    for (const char* piece : {"message", "hand-over", "composition", "own carry", "advance", "scan, chain",
                              "scan, doubling", "scan, all_gather", "scan, hierarchical"})
      EXPECT_GT(c[piece]["us"], 0) << piece;
    for (const char* how : {"alone", "stages", "chain", "doubling", "all_gather", "hierarchical", "whole"}) {
      const nlohmann::json& line = c["operator"][how];
      for (const char* column : {"forward", "24 forward"}) EXPECT_GT(line[column]["us"], 0) << how;
      EXPECT_EQ(line.contains("model us"), std::ranges::count(names_of_strategies, std::string(how)) == 1);
    }
    EXPECT_GT(c["plan"]["bandwidth"], 0);
  }
}

}  // namespace
}  // namespace baton
