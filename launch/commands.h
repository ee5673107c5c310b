// The table of commands, and what Boost is told of each. For options.cpp and commands.cpp alone.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

namespace baton {

struct Flag {
  const char* name;
  const char* fallback;
  const char* help;
};

struct CommandSpec {
  const char* name;
  const char* usage;
  const char* help;
  bool reads_config;
  const char* sections;     // those shown in its help; every section is accepted, so that one file serves all
  size_t max_files;         // positional arguments
  std::vector<Flag> flags;  // beside --config and --help
};

const std::vector<CommandSpec>& commands();

/// The row of `name`; an input error with the nearest command where there is none.
const CommandSpec& find_command(const std::string& name);

/// The options of a command as Boost knows them, a group a section. With `all`, also sections its help leaves out.
boost::program_options::options_description describe(const CommandSpec& spec, bool all);

}  // namespace baton
