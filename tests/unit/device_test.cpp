#include "comm/device.h"

#include <gtest/gtest.h>

#include "tests/unit/error_text.h"

namespace baton {
namespace {

/// Ranks of hosts with this many ranks each; every rank sees num_devices devices of its host.
std::vector<RankDevices> hosts(const std::vector<int>& ranks_of_host, int num_devices) {
  std::vector<RankDevices> all;
  for (size_t host = 0; host < ranks_of_host.size(); ++host)
    for (int r = 0; r < ranks_of_host[host]; ++r) {
      const std::string name = "node" + std::to_string(host);
      const int device = num_devices > 0 ? r % num_devices : 0;
      all.push_back({name, r, ranks_of_host[host], num_devices, num_devices > 0 ? name + std::to_string(device) : ""});
    }
  return all;
}

TEST(ChooseDevice, GivesEachRankOfAHostADeviceOfItsOwn) {
  const auto all = hosts({8, 8}, 8);
  for (int rank = 0; rank < 16; ++rank)
    for (const char* word : {"auto", "cuda"})
      EXPECT_EQ(choose_device(word, true, all, rank), (Device{DeviceType::kCuda, rank % 8}));
  EXPECT_EQ(choose_device("cpu", true, all, 3), Device{});
}

TEST(ChooseDevice, TakesTheOneDeviceThatALauncherShowsEachRank) {
  auto all = hosts({2}, 1);
  all[1].uuid = "another";
  EXPECT_EQ(choose_device("cuda", true, all, 1), (Device{DeviceType::kCuda, 0}));
}

TEST(ChooseDevice, AutoIsTheCpuOnAllRanksWhereOneSeesNoDevice) {
  auto all = hosts({2, 2}, 2);
  all[2].num_devices = 0;
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(choose_device("auto", true, all, rank), Device{});
  EXPECT_EQ(choose_device("auto", false, hosts({2}, 2), 0), Device{});
}

TEST(ChooseDevice, RefusesInOneSentence) {
  const auto words = [](const char* run_device, bool has_cuda, const std::vector<RankDevices>& all) {
    return input_error([&] { choose_device(run_device, has_cuda, all, 0); });
  };
  EXPECT_EQ(words("cuda", true, hosts({3}, 2)),
            "run.device = cuda: host node0 has 2 GPUs for 3 ranks; start one rank a GPU, or compute with --run.device "
            "cpu");
  EXPECT_NE(words("auto", true, hosts({1, 2}, 1)).find("host node1 has 1 GPU for 2 ranks"), std::string::npos);
  EXPECT_NE(words("cuda", true, hosts({2}, 0)).find("host node0 has no GPU that rank 0 sees"), std::string::npos);
  EXPECT_NE(words("cuda", false, hosts({1}, 1)).find("no CUDA backend"), std::string::npos);
  EXPECT_NE(words("gpu", true, hosts({1}, 1)).find("auto, cuda or cpu"), std::string::npos);
}

}  // namespace
}  // namespace baton
