#include "runtime/tensorboard.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>

#include "runtime/error.h"

// The file is a run of TFRecords (length, masked CRC-32C of it, data, masked CRC-32C of the data), each an Event in
// protobuf's wire format: wall_time = 1 (double), step = 2 (int64), file_version = 3 (string), summary = 5 (message),
// session_log = 7 (message). A Summary repeats value = 1 (tag = 1, simple_value = 2 (float)).
namespace baton {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
    table[i] = crc;
  }
  return table;
}

uint32_t masked_crc32c(const std::string& data) {
  static constexpr auto kTable = make_crc_table();
  uint32_t crc = 0xFFFFFFFF;
  for (unsigned char byte : data) crc = kTable[(crc ^ byte) & 0xFF] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8;
}

/// The bytes of x as they lie in memory: little-endian, like the format.
template <class T>
std::string raw(const T& x) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &x, sizeof(T));
  return bytes;
}

std::string varint(uint64_t x) {
  std::string bytes;
  for (; x >= 128; x >>= 7) bytes += static_cast<char>((x & 127) | 128);
  return bytes + static_cast<char>(x);
}

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
std::string field_key(int number, WireType type) { return varint(static_cast<uint64_t>(number << 3 | type)); }
std::string bytes_field(int number, const std::string& data) {
  return field_key(number, kBytes) + varint(data.size()) + data;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

EventWriter::EventWriter(const std::string& dir, int64_t first_step) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  path_ = fmt::format("{}/events.out.tfevents.{}.{}.{}", dir, static_cast<int64_t>(wall_time()), host.data(), getpid());
  file_ = std::fopen(path_.c_str(), "ab");
  CHECK_INPUT(file_ != nullptr, "{}: must be a file that can be written ({})", path_, std::strerror(errno));
  write_event(0, bytes_field(3, "brain.Event:2"));
  // SessionLog with status = 1 (START): readers drop older events from this step on.
  if (first_step > 0) write_event(first_step + 1, bytes_field(7, field_key(1, kVarint) + varint(1)));
}

EventWriter::~EventWriter() { std::fclose(file_); }

void EventWriter::write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars)
    summary += bytes_field(1, bytes_field(1, tag) + field_key(2, kFixed32) + raw(static_cast<float>(value)));
  write_event(step, bytes_field(5, summary));
}

void EventWriter::write_event(int64_t step, const std::string& field) {
  const std::string event =
      field_key(1, kFixed64) + raw(wall_time()) + field_key(2, kVarint) + varint(static_cast<uint64_t>(step)) + field;
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  const std::string record = length + raw(masked_crc32c(length)) + event + raw(masked_crc32c(event));
  const bool written = std::fwrite(record.data(), 1, record.size(), file_) == record.size() && std::fflush(file_) == 0;
  CHECK(written, "{}: could not be written ({})", path_, std::strerror(errno));
}

}  // namespace baton
