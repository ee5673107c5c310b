#include "runtime/manifest.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/files.h"

namespace baton {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int kFormat = 1;
const std::string kNoChecksum = "00000000";
/// The text up to the digits of its own checksum: the first key.
const std::string kHead = "{\n  \"checksum\": \"";

std::string hex(uint32_t checksum) { return fmt::format("{:08x}", checksum); }

ordered_json to_json(const Shape& shape) {
  ordered_json dims = ordered_json::array();
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

ordered_json lines_of(const std::string& text) {
  ordered_json lines = ordered_json::array();
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

}  // namespace

std::string part_name(int part) { return fmt::format("part-{:05d}.h5", part); }

std::string Manifest::to_text() const {
  ordered_json json;
  json["checksum"] = kNoChecksum;
  json["format"] = kFormat;
  json["step"] = state.step;
  json["samples"] = state.samples;
  json["tokens"] = state.tokens;
  json["seed"] = state.seed;
  json["num_parts"] = num_parts;
  for (const File& file : files)
    json["files"].push_back({{"name", file.name},
                             {"bytes", file.info.bytes},
                             {"checksum", hex(static_cast<uint32_t>(file.info.checksum))}});
  json["tensors"] = ordered_json::object();
  for (const auto& [name, entry] : tensors)
    json["tensors"][name] = {{"dtype", to_string(entry.dtype)}, {"shape", to_json(entry.shape)}};
  json["config"] = lines_of(config_ini);
  std::string text = json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  CHECK(text.starts_with(kHead + kNoChecksum), "the manifest must begin with its checksum");
  return text.replace(kHead.size(), kNoChecksum.size(), hex(checksum_of(text.data(), text.size())));
}

Manifest Manifest::parse(const std::string& text) {
  const std::string digits = text.size() > kHead.size() ? text.substr(kHead.size(), kNoChecksum.size()) : "";
  std::string zeroed = text;
  if (digits.size() == kNoChecksum.size()) zeroed.replace(kHead.size(), digits.size(), kNoChecksum);
  const std::string found = hex(checksum_of(zeroed.data(), zeroed.size()));
  CHECK_INPUT(digits == found, "manifest.json is damaged (checksum {}, says {})", found, digits);
  try {
    const ordered_json json = ordered_json::parse(text);
    CHECK_INPUT(json.at("format").get<int>() == kFormat, "manifest.json has format {}, this program reads {}",
                json.at("format").get<int>(), kFormat);
    Manifest m;
    m.state = {json.at("step"), json.at("samples"), json.at("tokens"), json.at("seed")};
    m.num_parts = json.at("num_parts");
    for (const ordered_json& file : json.at("files"))
      m.files.push_back(
          {file.at("name"), {file.at("bytes"), std::stoll(file.at("checksum").get<std::string>(), nullptr, 16)}});
    for (const auto& [name, entry] : json.at("tensors").items()) {
      const auto dims = entry.at("shape").get<std::vector<int64_t>>();
      m.tensors[name] = {Shape(dims), parse_dtype(entry.at("dtype"))};
    }
    const auto lines = json.at("config").get<std::vector<std::string>>();
    for (size_t i = 0; i < lines.size(); ++i) m.config_ini += (i > 0 ? "\n" : "") + lines[i];
    return m;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::kInput, fmt::format("manifest.json is not that of a checkpoint ({})", error.what()));
  }
}

Manifest verify_checkpoint(const std::string& dir, bool verify_checksums) {
  CHECK_INPUT(fs::is_directory(dir), "there is no such directory");
  const fs::path base = dir;
  CHECK_INPUT(fs::exists(base / "manifest.json"), "manifest.json is missing");
  Manifest manifest = Manifest::parse(read_file(base / "manifest.json"));
  for (const Manifest::File& file : manifest.files) {
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(base / file.name, error));
    CHECK_INPUT(error != std::errc::no_such_file_or_directory, "{} is missing", file.name);
    CHECK_INPUT(!error, "{} cannot be read ({})", file.name, error.message());
    CHECK_INPUT(bytes == file.info.bytes, "{} is damaged ({} bytes, expected {})", file.name, bytes, file.info.bytes);
    if (!verify_checksums) continue;
    const uint32_t checksum = checksum_of_file(base / file.name);
    CHECK_INPUT(checksum == file.info.checksum, "{} is damaged (checksum {}, expected {})", file.name, hex(checksum),
                hex(static_cast<uint32_t>(file.info.checksum)));
  }
  return manifest;
}

}  // namespace baton
