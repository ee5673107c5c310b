#include "runtime/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "runtime/config_keys.h"
#include "runtime/error.h"

namespace baton {
namespace {

/// All of `text` as a number of type N; false where it is anything else.
template <class N>
bool read_number(const std::string& text, N& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

/// Key dims or value dims of one head; validate() refuses what does not divide.
int64_t head_dim(const ModelConfig& m, double expand) {
  if (m.family == "tnl") return m.width / m.heads;
  return std::llround(static_cast<double>(m.width) * expand) / m.heads;
}

std::string ini_text(const std::string& text) {
  const bool plain = text.find_first_of("#\n\r") == std::string::npos && text.find('"') != 0 &&
                     (text.empty() || (!std::isspace(static_cast<unsigned char>(text.front())) &&
                                       !std::isspace(static_cast<unsigned char>(text.back()))));
  if (plain) return text;
  std::string quoted = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // '#' starts a comment wherever it stands in an INI line.
  for (size_t at; (at = quoted.find('#')) != std::string::npos;) quoted.replace(at, 1, "\\u0023");
  return quoted;
}

int64_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

int64_t ModelConfig::key_dim() const { return head_dim(*this, expand_k); }
int64_t ModelConfig::value_dim() const { return head_dim(*this, expand_v); }

int64_t ModelConfig::ffn_dim() const {
  if (ffn > 0) return ffn;
  // 8/3 of the width, up to a multiple of 256: the rule of the public GLA checkpoints, which also gives the inner
  // widths of the public TransNormerLLM ones (2048: 5632, 4096: 11008).
  return (width * 8 / 3 + 255) / 256 * 256;
}

std::string ModelConfig::norm_name() const {
  if (norm != "auto") return norm;
  return family == "tnl" ? "simple_rmsnorm" : "rmsnorm";
}

void set_value(const std::string&, const std::string& text, std::string& value) { value = text; }

void set_value(const std::string& key, const std::string& text, int64_t& value) {
  int64_t read = 0;
  CHECK_INPUT(read_number(text, read), "{} = {}: must be an integer (64 bits, digits alone)", key, text);
  value = read;
}

void set_value(const std::string& key, const std::string& text, double& value) {
  double read = 0;
  CHECK_INPUT(read_number(text, read) && std::isfinite(read), "{} = {}: must be a number", key, text);
  value = read;
}

void set_value(const std::string& key, const std::string& text, bool& value) {
  CHECK_INPUT(text == "true" || text == "false", "{} = {}: must be true or false", key, text);
  value = text == "true";
}

std::string value_text(const std::string& value) { return value; }
std::string value_text(int64_t value) { return fmt::format("{}", value); }
std::string value_text(double value) { return fmt::format("{}", value); }
std::string value_text(bool value) { return value ? "true" : "false"; }

std::string to_ini(const Config& config) {
  std::string text, section;
  for_each_key(config, [&](const std::string& key, const auto& value, const char*) {
    const size_t dot = key.find('.');
    if (key.substr(0, dot) != section) {
      text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.substr(0, dot));
      section = key.substr(0, dot);
    }
    text += fmt::format("{} = {}\n", key.substr(dot + 1), ini_text(value_text(value)));
  });
  return text;
}

std::vector<std::string> differences(const Config& a, const Config& b) {
  std::vector<std::string> values, found;
  for_each_key(a, [&](const std::string&, const auto& value, const char*) { values.push_back(value_text(value)); });
  size_t i = 0;
  for_each_key(b, [&](const std::string& key, const auto& value, const char*) {
    const std::string text = value_text(value);
    if (text != values[i]) found.push_back(fmt::format("{}: {} -> {}", key, values[i], text));
    ++i;
  });
  return found;
}

std::string nearest_name(const std::string& wrong, const std::vector<std::string>& names) {
  const bool bare = wrong.find('.') == std::string::npos;
  const auto distance = [&](const std::string& name) {
    const std::string compared = bare ? name.substr(name.find('.') + 1) : name;
    // An abbreviation is nearer than any other name of its length.
    return compared.starts_with(wrong) ? 0 : edit_distance(wrong, compared);
  };
  return *std::min_element(names.begin(), names.end(),
                           [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
}

std::vector<int64_t> parse_index_list(const std::string& key, const std::string& text, int64_t count) {
  std::vector<int64_t> list;
  if (text == "none") return list;
  if (text == "all") {
    list.resize(static_cast<size_t>(count));
    std::iota(list.begin(), list.end(), 0);
    return list;
  }
  std::set<int64_t> indices;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t index = -1;
    CHECK_INPUT(read_number(text.substr(begin, end - begin), index) && index >= 0 && index < count,
                "{} = {}: must be all, none or a list of integers from 0 to {}, such as 0,2", key, text, count - 1);
    indices.insert(index);
    begin = end + 1;
  }
  return {indices.begin(), indices.end()};
}

std::vector<int64_t> parse_count_list(const std::string& key, const std::string& text) {
  constexpr int64_t kMost = 1 << 20;
  std::vector<int64_t> list;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t& count = list.emplace_back();
    CHECK_INPUT(read_number(text.substr(begin, end - begin), count) && count >= 1 && count <= kMost,
                "{} = {}: must be a list of integers from 1 to {}, such as 8,64", key, text, kMost);
    begin = end + 1;
  }
  return list;
}

StepRange parse_step_range(const std::string& key, const std::string& text) {
  StepRange steps;
  if (text == "none") return steps;
  const size_t colon = text.find(':');
  CHECK_INPUT(colon != std::string::npos && read_number(text.substr(0, colon), steps.first) &&
                  read_number(text.substr(colon + 1), steps.last) && steps.first >= 1 && steps.last >= steps.first,
              "{} = {}: must be none or first:last, two steps such as 10:12", key, text);
  return steps;
}

}  // namespace baton
