#include "launch/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <type_traits>

#include "launch/commands.h"
#include "runtime/config_keys.h"
#include "runtime/error.h"

namespace baton {
namespace {

namespace po = boost::program_options;

/// Reads what Boost's own style leaves out: "--flag" before "true" or "false", "--key=" with nothing behind, and -h.
std::vector<po::option> read_special(std::vector<std::string>& args, const std::set<std::string>& booleans) {
  const std::string arg = args.front();
  po::option found;
  if (arg == "-h") {
    found.string_key = "help";
  } else if (arg.starts_with("--") && booleans.count(arg.substr(2)) > 0) {
    found.string_key = arg.substr(2);
    const bool has_value = args.size() > 1 && !args[1].starts_with("--");
    found.value = {has_value ? args[1] : "true"};
    if (has_value) args.erase(args.begin());
  } else if (arg.starts_with("--") && arg.size() > 3 && arg.find('=') == arg.size() - 1) {
    found.string_key = arg.substr(2, arg.size() - 3);
    found.value = {""};
  } else {
    return {};
  }
  args.erase(args.begin());
  return {found};
}

std::vector<std::string> key_names() {
  std::vector<std::string> names;
  const Config defaults;
  for_each_key(defaults, [&](const std::string& key, const auto&, const char*) { names.push_back(key); });
  return names;
}

void set_key(Config& config, const std::string& key, const std::string& text) {
  for_each_key(config, [&](const std::string& name, auto& value, const char*) {
    if (name == key) set_value(key, text, value);
  });
}

/// A value of an INI line: a JSON string where it is quoted.
std::string unquote(const std::string& key, const std::string& text) {
  if (text.empty() || text.front() != '"') return text;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  CHECK_INPUT(json.is_string(), "{} = {}: a value that begins with a quotation mark must be a JSON string", key, text);
  return json.get<std::string>();
}

po::parsed_options run_parser(const CommandSpec& spec, const std::vector<std::string>& args,
                              const po::options_description& options) {
  std::set<std::string> booleans;
  const Config defaults;
  for_each_key(defaults, [&]<class T>(const std::string& key, const T&, const char*) {
    if (std::is_same_v<T, bool> && spec.reads_config) booleans.insert(key);
  });
  for (const Flag& flag : spec.flags)
    if (std::string(flag.fallback) == "false") booleans.insert(flag.name);
  using Style = po::command_line_style::style_t;
  const int style = Style::allow_long | Style::long_allow_next | Style::long_allow_adjacent;
  try {
    return po::command_line_parser(args)
        .options(options)
        .style(style)
        .extra_style_parser([&](std::vector<std::string>& rest) { return read_special(rest, booleans); })
        .allow_unregistered()
        .run();
  } catch (const po::error_with_option_name& e) {
    throw Error(ExitCode::kInput, fmt::format("{}: must be followed by a value", e.get_option_name()));
  } catch (const po::error& e) {
    throw Error(ExitCode::kInput, fmt::format("the command line cannot be read: {}", e.what()));
  }
}

std::string joined_value(const po::option& option) { return option.value.empty() ? "" : option.value.front(); }

/// Sorts what Boost found into positional arguments and options of known names, in the order given.
std::vector<std::pair<std::string, std::string>> known_options(const CommandSpec& spec,
                                                               const po::parsed_options& parsed,
                                                               std::vector<std::string>& positional) {
  std::vector<std::string> names = {"help"};
  if (spec.reads_config) {
    names.emplace_back("config");
    for (auto& key : key_names()) names.push_back(key);
  }
  for (const Flag& flag : spec.flags) names.emplace_back(flag.name);
  std::vector<std::pair<std::string, std::string>> found;
  for (const po::option& option : parsed.options) {
    if (option.position_key >= 0 || option.string_key.empty()) {
      positional.push_back(joined_value(option));
      continue;
    }
    const std::string& key = option.string_key;
    CHECK_INPUT(std::find(names.begin(), names.end(), key) != names.end(),
                "--{} is no key of baton {}: did you mean --{}?", key, spec.name, nearest_name(key, names));
    found.emplace_back(key, joined_value(option));
  }
  return found;
}

void read_config(Command& command, const std::vector<std::pair<std::string, std::string>>& given,
                 const ReadFile& read_file) {
  command.config_name = "default";
  for (const auto& [key, text] : given) {
    if (key != "config") continue;
    CHECK_INPUT(!text.empty(), "--config: must be followed by a file");
    command.config = config_from_ini(read_file(text), text);
    command.config_name = std::filesystem::path(text).stem().string();
  }
  for (const auto& [key, text] : given)
    if (key != "config" && key != "help") set_key(command.config, key, text);
  if (command.config.run.dir.empty()) command.config.run.dir = "runs/" + command.config_name;
}

}  // namespace

Config config_from_ini(const std::string& text, const std::string& name) {
  std::istringstream stream(text);
  po::parsed_options parsed(nullptr);
  try {
    parsed = po::parse_config_file(stream, po::options_description(), true);
  } catch (const po::invalid_syntax& e) {
    throw Error(ExitCode::kInput, fmt::format("{}: line \"{}\" must be [section] or key = value", name, e.tokens()));
  } catch (const po::error& e) {
    throw Error(ExitCode::kInput, fmt::format("{}: cannot be read as an INI file: {}", name, e.what()));
  }
  Config config;
  const auto names = key_names();
  std::set<std::string> seen;
  for (const po::option& option : parsed.options) {
    const std::string& key = option.string_key;
    CHECK_INPUT(std::find(names.begin(), names.end(), key) != names.end(), "{}: {} is no key: did you mean {}?", name,
                key, nearest_name(key, names));
    CHECK_INPUT(seen.insert(key).second, "{}: {} must be given once, but stands there twice", name, key);
    set_key(config, key, unquote(key, joined_value(option)));
  }
  return config;
}

Command parse_command_line(const std::vector<std::string>& args, const ReadFile& read_file) {
  Command command;
  command.help = args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help";
  if (command.help) return command;
  CHECK_INPUT(!args[0].starts_with("-"), "{} must come after a command, as in baton train --config FILE", args[0]);
  const CommandSpec& spec = find_command(args[0]);
  command.name = spec.name;
  const auto options = describe(spec, true);
  const auto parsed = run_parser(spec, {args.begin() + 1, args.end()}, options);
  const auto given = known_options(spec, parsed, command.positional);
  for (const auto& [key, text] : given) command.help = command.help || key == "help";
  if (command.help) return command;
  CHECK_INPUT(command.positional.size() <= spec.max_files, "{} is one argument too many for baton {} {}",
              command.positional[spec.max_files], spec.name, spec.usage);
  CHECK_INPUT(command.positional.size() == spec.max_files, "baton {} must be given an argument, as in baton {} {}",
              spec.name, spec.name, spec.usage);
  if (spec.reads_config) read_config(command, given, read_file);
  for (const Flag& flag : spec.flags) command.flags[flag.name] = flag.fallback;
  for (const auto& [key, text] : given)
    if (command.flags.count(key) > 0) command.flags[key] = text;
  return command;
}

std::string read_whole_file(const std::string& key, const std::string& path) {
  std::error_code error;
  CHECK_INPUT(std::filesystem::is_regular_file(path, error), "{} = {}: must be a file that exists", key, path);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file.is_open() && file.peek() != EOF) text << file.rdbuf();
  CHECK_INPUT(file.is_open() && !file.bad() && text.good(), "{} = {}: must be a file that can be read", key, path);
  return text.str();
}

}  // namespace baton
