#include "runtime/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/tensorboard.h"
#include "tests/unit/error_text.h"
#include "tests/unit/scratch_dir.h"

namespace baton {
namespace {

using testing::ElementsAre;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

StepMetrics metrics(int64_t step, double val_loss = NAN) {
  StepMetrics m;
  m.step = step, m.tokens = step * 100, m.loss = 5.0 / static_cast<double>(step), m.val_loss = val_loss, m.lr = 1e-3;
  m.grad_norm = 0.5, m.tokens_per_s = 1000, m.tokens_per_s_per_rank = 250, m.mfu = 0.25, m.step_s = 0.125;
  m.mem_bytes = int64_t{5} << 30;
  return m;
}

TEST(MetricsWriter, WritesEveryFigureOfAStepAtOnce) {
  ScratchDir dir;
  MetricsWriter writer(dir.path("run"), 0);
  writer.write(metrics(1));
  writer.write(metrics(2, 4.5));
  const auto lines = read_lines(dir.path("run/metrics.jsonl"));  // while it is still open
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], nlohmann::json::parse(R"({"step": 1, "tokens": 100, "loss": 5.0, "lr": 0.001, "grad_norm": 0.5,
      "tokens_per_s": 1000.0, "tokens_per_s_per_rank": 250.0, "mfu": 0.25, "step_s": 0.125, "mem_bytes": 5368709120})"));
  EXPECT_EQ(lines[1]["val_loss"], 4.5);
}

TEST(MetricsWriter, ResumeDropsLaterSteps) {
  ScratchDir dir;
  {
    MetricsWriter writer(dir.path(), 0);
    for (int64_t step = 1; step <= 5; ++step) writer.write(metrics(step));
  }
  std::ofstream(dir.path("metrics.jsonl"), std::ios::app) << "{\"step\": 2, \"lo";  // cut short by a crash
  {
    MetricsWriter writer(dir.path(), 3);
    writer.write(metrics(4, 1.5));
  }
  std::vector<int64_t> steps;
  for (const auto& line : read_lines(dir.path("metrics.jsonl"))) steps.push_back(line["step"]);
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4));
  MetricsWriter fresh(dir.path(), 0);
  EXPECT_TRUE(read_lines(dir.path("metrics.jsonl")).empty());
}

TEST(MetricsWriter, UnwritableDirectory) {
  ScratchDir dir;
  const std::string path = dir.write("file", "x") + "/run";
  EXPECT_THAT(input_error([&] { MetricsWriter(path, 0); }),
              testing::StartsWith("run.dir = " + path + ": must be a directory that can be written"));
}

// A reader of event files of its own: bitwise CRC, records, and the fields of the protocol buffers.

uint32_t slow_masked_crc(const std::string& data) {
  uint32_t crc = ~0u;
  for (unsigned char byte : data) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

template <class T>
T take(const std::string& bytes, size_t& at) {
  T value{};
  EXPECT_LE(at + sizeof(T), bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  at += sizeof(T);
  return value;
}

uint64_t take_varint(const std::string& bytes, size_t& at) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<uint8_t>(bytes, at);
    value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return value;
  }
}

/// Fields of a message by number; numbers as 8 or 4 raw bytes or as a decimal text of a varint.
std::multimap<int, std::string> fields(const std::string& message) {
  std::multimap<int, std::string> found;
  for (size_t at = 0; at < message.size();) {
    const uint64_t key = take_varint(message, at);
    std::string value;
    size_t bytes = 0;
    if ((key & 7) == 0) value = std::to_string(take_varint(message, at));
    if ((key & 7) == 1) bytes = 8;
    if ((key & 7) == 2) bytes = take_varint(message, at);
    if ((key & 7) == 5) bytes = 4;
    if (bytes > 0) value = message.substr(at, bytes);
    at += bytes;
    found.emplace(static_cast<int>(key >> 3), value);
  }
  return found;
}

std::vector<std::multimap<int, std::string>> read_events(const std::string& dir) {
  std::vector<std::multimap<int, std::string>> events;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("events.out.tfevents."));
    const std::string bytes = read_file(entry.path());
    for (size_t at = 0; at < bytes.size();) {
      const std::string length_bytes = bytes.substr(at, 8);
      const auto length = take<uint64_t>(bytes, at);
      EXPECT_EQ(take<uint32_t>(bytes, at), slow_masked_crc(length_bytes));
      const std::string event = bytes.substr(at, length);
      at += length;
      EXPECT_EQ(take<uint32_t>(bytes, at), slow_masked_crc(event));
      events.push_back(fields(event));
    }
  }
  return events;
}

TEST(EventWriter, ScalarsReadBack) {
  ScratchDir dir;
  EXPECT_EQ(slow_masked_crc("123456789"), ((0xE3069283u >> 15) | (0xE3069283u << 17)) + 0xA282EAD8);  // RFC 3720
  EventWriter writer(dir.path(), 300);
  writer.write(301, {{"loss", 2.5}, {"mem_bytes", 5e9}});
  const auto events = read_events(dir.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].find(3)->second, "brain.Event:2");
  EXPECT_EQ(events[1].find(2)->second, "301");  // the session's start, from which older events are dropped
  EXPECT_EQ(fields(events[1].find(7)->second).find(1)->second, "1");
  EXPECT_EQ(events[2].find(2)->second, "301");
  std::map<std::string, float> scalars;
  const auto summary = fields(events[2].find(5)->second);
  for (const auto& [number, value] : summary) {
    EXPECT_EQ(number, 1);
    const auto scalar = fields(value);
    size_t at = 0;
    scalars[scalar.find(1)->second] = take<float>(scalar.find(2)->second, at);
  }
  EXPECT_EQ(scalars, (std::map<std::string, float>{{"loss", 2.5f}, {"mem_bytes", 5e9f}}));
}

TEST(ConsoleLine, PlainLinesWhereThereIsNoTerminal) {
  testing::internal::CaptureStdout();
  ConsoleLine line;
  line.show("step 1");
  line.show("step 2");
  line.end();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "step 1\nstep 2\n");
}

/// What a terminal receives from ConsoleLine in a process whose output is that terminal; nothing where none can be had.
std::optional<std::string> on_terminal(unsigned short columns) {
  winsize size{};
  size.ws_col = columns, size.ws_row = 24;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) return std::nullopt;
  if (child == 0) {
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("PMIX_RANK");
    ConsoleLine line;
    line.show("step 10 of 12");
    line.show("step 11");
    line.end();
    _exit(0);
  }
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(terminal);
  waitpid(child, nullptr, 0);
  return text;
}

TEST(ConsoleLine, RewritesItsLineOnATerminal) {
  const auto wide = on_terminal(80), narrow = on_terminal(8);
  if (!wide || !narrow) GTEST_SKIP() << "no pseudo-terminal here (/dev/ptmx)";
  EXPECT_EQ(*wide, "\rstep 10 of 12\rstep 11      \r\n");
  EXPECT_EQ(*narrow, "\rstep 10\rstep 11\r\n");  // cut, as a wrapped line cannot be rewritten
}

TEST(Log, OneLineWithRankAndStep) {
  testing::internal::CaptureStderr();
  log_line(3, 17, "a tensor is not finite");
  log_line(0, -1, "bad key");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::HasSubstr(" rank 3 step 17 a tensor is not finite\n"));
  EXPECT_THAT(text, testing::HasSubstr(" rank 0 bad key\n"));
}

TEST(Log, Formats) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes((int64_t{1} << 30) - 1), "1.0 GiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 40), "3.0 TiB");
  EXPECT_EQ(format_seconds(1.25), "1.2s");
  EXPECT_EQ(format_seconds(9.97), "10s");
  EXPECT_EQ(format_seconds(59.7), "1m00s");
  EXPECT_EQ(format_seconds(43380), "12h03m");
  EXPECT_EQ(format_seconds(90000), "1d01h");
  EXPECT_EQ(format_seconds(NAN), "?");
  EXPECT_GT(peak_memory_bytes(), int64_t{1} << 20);
}

}  // namespace
}  // namespace baton
