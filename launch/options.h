// The command line and config files: the only place that knows Boost. Every key comes from for_each_key.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/config.h"

namespace baton {

struct Command {
  std::string name;                          // "train"; empty where only help is asked for
  bool help = false;                         // help_text(name) is to be printed, nothing else
  Config config;                             // of a command that reads one; run.dir is resolved
  std::string config_name;                   // "gla-tiny" for --config configs/gla-tiny.cfg
  std::map<std::string, std::string> flags;  // of a command with plain flags: every flag, given or default
  std::vector<std::string> positional;       // its files
};

/// Text of the file at `path`; throws an input error where it cannot be read. Rank 0 reads and broadcasts.
using ReadFile = std::function<std::string(const std::string& path)>;

/// What was asked for: args as main has them, without the program's name. A key on the command line wins over the file.
/// Throws input errors: an unknown command, key or flag with the nearest known one, a bad value with its rule.
Command parse_command_line(const std::vector<std::string>& args, const ReadFile& read_file);

/// The configuration in the text of an INI file (such as a saved config.cfg); `name` is the file in messages.
Config config_from_ini(const std::string& text, const std::string& name);

/// Help for one command, or for the program where `command` is empty: commands, flags, keys by section with defaults.
std::string help_text(const std::string& command);

/// The whole file; an input error where it cannot be read.
std::string read_whole_file(const std::string& key, const std::string& path);

}  // namespace baton
