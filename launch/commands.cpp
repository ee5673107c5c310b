#include "launch/commands.h"

#include <fmt/format.h>

#include <iterator>
#include <set>
#include <sstream>
#include <type_traits>

#include "launch/options.h"
#include "runtime/config_keys.h"
#include "runtime/error.h"

namespace baton {
namespace {

namespace po = boost::program_options;

template <class T>
const char* type_name() {
  if constexpr (std::is_same_v<T, int64_t>) return "INTEGER";
  if constexpr (std::is_same_v<T, double>) return "NUMBER";
  if constexpr (std::is_same_v<T, bool>) return "true|false";
  return "TEXT";
}

void add_option(po::options_description& group, const std::string& name, const char* type, const std::string& fallback,
                const char* help) {
  auto* value = po::value<std::string>()->value_name(type);
  if (!fallback.empty()) value->default_value(fallback);
  group.add_options()(name.c_str(), value, help);
}

}  // namespace

const std::vector<CommandSpec>& commands() {
  static const std::vector<CommandSpec> list = {
      {"train",
       "[--config FILE] [--SECTION.KEY VALUE]...",
       "train a model; resumes where checkpoint.resume says",
       true,
       "run model data train eval parallel checkpoint dump",
       0,
       {}},
      {"eval",
       "[--config FILE] [--SECTION.KEY VALUE]...",
       "loss, perplexity and bits per byte on data.val",
       true,
       "run model data eval parallel checkpoint",
       0,
       {}},
      {"sample",
       "[--config FILE] [--SECTION.KEY VALUE]...",
       "continue a text, token by token",
       true,
       "run model data checkpoint sample",
       0,
       {}},
      {"plan",
       "[--config FILE] [--SECTION.KEY VALUE]...",
       "parameters, memory and bytes sent, without allocating",
       true,
       "run model data train parallel plan",
       0,
       {}},
      {"replay",
       "FILE.h5 [--FLAG VALUE]...",
       "run the cases of a golden file over all ranks and compare",
       false,
       "",
       1,
       {{"dtype", "float32", "float32, float64 (CPU) or bfloat16 (GPU)"},
        {"device", "auto", "auto, cpu or cuda"},
        {"scan", "chain", "chain, doubling, all_gather or hierarchical"},
        {"tolerance", "", "largest relative RMS error; empty: that of the dtype"},
        {"out", "", "HDF5 file for the computed tensors"}}},
      {"doctor",
       "[--FLAG VALUE]...",
       "check MPI, devices and NCCL between all ranks, stage by stage",
       false,
       "",
       0,
       {{"deadline", "60", "seconds that one wait may last"}}},
      {"bench",
       "kernels|comm [--FLAG VALUE]...",
       "time the attention operator by heads, gate kind and length; or what handing its state on adds",
       false,
       "",
       1,
       {{"device", "auto", "auto, cpu or cuda"},
        {"dtype", "", "float32, float64 (CPU) or bfloat16 (GPU); empty: float32 on a CPU, bfloat16 on a GPU"},
        {"shape", "", "heads as in H4_K256_V512, comma-separated"},
        {"gate", "",
         "none, fixed, scalar, vector, bilinear, comma-separated, or all; with no shape or gate, those "
         "of kernels/shapes.h"},
        {"tokens", "", "lengths of a sequence, of comm those of a rank, comma-separated"},
        {"batch", "", "sequences; empty: 1, but for kernels on a GPU as many as make 32,768 tokens"},
        {"span", "", "tokens from one stored state to the next, where kernels walk; empty: as they choose"},
        {"repeat", "", "measurements of each case, of which the median counts"},
        {"threads", "0", "threads a rank; 0: cores / ranks of the host"},
        {"graph", "false", "also replays of a CUDA graph, and what launches cost"},
        {"stages", "false", "kernels: also the operator's stages, each alone"},
        {"bandwidth", "4.23", "TB/s of a GPU, for the floor; an H200's device copy"},
        {"peak", "770", "TFLOP/s of a GPU, for the floor; an H200's bfloat16 product of 8192 x 8192"},
        {"json", "", "file for the figures, a line a case"}}},
  };
  return list;
}

const CommandSpec& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& spec : commands()) {
    if (spec.name == name) return spec;
    names.emplace_back(spec.name);
  }
  CHECK_INPUT(false, "{} is no command of baton: did you mean {}?", name, nearest_name(name, names));
  return commands().front();
}

po::options_description describe(const CommandSpec& spec, bool all) {
  po::options_description whole("", 120, 60), general("options", 120, 60);
  general.add_options()("help,h", "print this text");
  if (spec.reads_config) add_option(general, "config", "FILE", "", "config file (INI); keys given here win over it");
  for (const Flag& flag : spec.flags) add_option(general, flag.name, "TEXT", flag.fallback, flag.help);
  whole.add(general);
  if (!spec.reads_config) return whole;
  std::vector<std::pair<std::string, po::options_description>> groups;
  const Config defaults;
  for_each_key(defaults, [&]<class T>(const std::string& key, const T& value, const char* help) {
    const std::string section = key.substr(0, key.find('.'));
    if (groups.empty() || groups.back().first != section)
      groups.emplace_back(section, po::options_description("[" + section + "]", 120, 60));
    add_option(groups.back().second, key, type_name<T>(), value_text(value), help);
  });
  std::istringstream shown_text(spec.sections);
  const std::set<std::string> shown{std::istream_iterator<std::string>(shown_text), {}};
  for (const auto& [section, group] : groups)
    if (all || shown.count(section) > 0) whole.add(group);
  return whole;
}

std::string help_text(const std::string& command) {
  std::ostringstream text;
  if (!command.empty()) {
    const CommandSpec& spec = find_command(command);
    text << fmt::format("baton {} {}\n  {}\n", spec.name, spec.usage, spec.help) << describe(spec, false);
    if (spec.reads_config)
      text << "\nKeys of other sections are accepted too, so that one config file serves all commands.\n";
    return text.str();
  }
  text << "baton COMMAND ..., alone or under mpirun -np RANKS\n\n";
  for (const auto& spec : commands())
    text << fmt::format("  {:<8}{}\n  {:<8}  {}\n", spec.name, spec.usage, "", spec.help);
  text << "\nbaton COMMAND --help shows its options. Keys of a config file ([section], then key = value) and of the\n"
          "command line (--section.key VALUE):\n";
  text << describe(commands().front(), true);
  return text.str();
}

}  // namespace baton
