#include "launch/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/config_keys.h"
#include "tests/unit/error_text.h"

namespace baton {
namespace {

using testing::HasSubstr;

Command parse(const std::vector<std::string>& args, const std::string& file = "") {
  return parse_command_line(args, [&](const std::string&) { return file; });
}

std::string refusal(const std::vector<std::string>& args, const std::string& file = "") {
  return input_error([&] { parse(args, file); });
}

TEST(Options, CommandLineWinsOverFile) {
  const auto command = parse({"train", "--train.lr=0.5", "--config", "some/dir/tiny.v2.cfg", "--model.width", "64"},
                             "# a comment\n[train]\nlr = 0.25\nsteps = 7 # behind\n\n[model]\nwidth=32\n");
  EXPECT_EQ(command.name, "train");
  EXPECT_EQ(command.config_name, "tiny.v2");
  EXPECT_EQ(command.config.run.dir, "runs/tiny.v2");
  EXPECT_EQ(command.config.train.lr, 0.5);
  EXPECT_EQ(command.config.train.steps, 7);
  EXPECT_EQ(command.config.model.width, 64);
  EXPECT_FALSE(command.help);
}

TEST(Options, ReadsTheNamedFile) {
  std::string asked;
  const auto command = parse_command_line({"plan", "--config=a.cfg"}, [&](const std::string& path) {
    asked = path;
    return "[run]\ndir = there\n";
  });
  EXPECT_EQ(asked, "a.cfg");
  EXPECT_EQ(command.config.run.dir, "there");
  EXPECT_EQ(parse({"train"}).config.run.dir, "runs/default");
}

TEST(Options, Booleans) {
  EXPECT_TRUE(parse({"train", "--model.tie_embeddings"}).config.model.tie_embeddings);
  EXPECT_TRUE(parse({"train", "--model.tie_embeddings", "true", "--train.lr", "1"}).config.model.tie_embeddings);
  EXPECT_FALSE(parse({"train", "--model.tie_embeddings=false"}, "").config.model.tie_embeddings);
  const auto next = parse({"train", "--eval.by_position", "--train.steps", "3"});
  EXPECT_TRUE(next.config.eval.by_position);
  EXPECT_EQ(next.config.train.steps, 3);
  EXPECT_EQ(refusal({"train", "--eval.by_position", "maybe"}), "eval.by_position = maybe: must be true or false");
}

TEST(Options, EmptyAndNegativeValues) {
  EXPECT_EQ(parse({"train", "--checkpoint.resume="}, "").config.checkpoint.resume, "");
  EXPECT_EQ(parse({"sample", "--sample.prompt", ""}).config.sample.prompt, "");
  EXPECT_EQ(parse({"sample", "--sample.prompt", "a = b"}).config.sample.prompt, "a = b");
  EXPECT_EQ(parse({"sample", "--sample.prompt=--x"}).config.sample.prompt, "--x");
  EXPECT_EQ(parse({"train", "--train.lr", "-1"}).config.train.lr, -1);
}

TEST(Options, UnknownKeysNameTheNearest) {
  EXPECT_EQ(refusal({"train", "--train.step", "5"}),
            "--train.step is no key of baton train: did you mean --train.steps?");
  EXPECT_EQ(refusal({"train", "--steps=5"}), "--steps is no key of baton train: did you mean --train.steps?");
  EXPECT_EQ(refusal({"train", "--config", "x.cfg"}, "[model]\nwidht = 5\n"),
            "x.cfg: model.widht is no key: did you mean model.width?");
  EXPECT_EQ(refusal({"replay", "f.h5", "--tolerence", "1"}),
            "--tolerence is no key of baton replay: did you mean --tolerance?");
  EXPECT_EQ(refusal({"trian"}), "trian is no command of baton: did you mean train?");
}

TEST(Options, NoAbbreviations) { EXPECT_THAT(refusal({"train", "--train.weight", "1"}), HasSubstr("weight_decay?")); }

TEST(Options, BadValuesNameKeyValueAndRule) {
  EXPECT_EQ(refusal({"train", "--train.lr", "abc"}), "train.lr = abc: must be a number");
  EXPECT_EQ(refusal({"train", "--config", "x"}, "[train]\nlr = abc\n"), "train.lr = abc: must be a number");
  EXPECT_THAT(refusal({"train", "--train.steps", "1e6"}), HasSubstr("train.steps = 1e6: must be an integer"));
  EXPECT_THAT(refusal({"train", "--train.steps="}), HasSubstr("train.steps = : must be an integer"));
  EXPECT_EQ(refusal({"train", "--train.lr"}), "--train.lr: must be followed by a value");
  EXPECT_EQ(refusal({"train", "--config"}), "--config: must be followed by a value");
  EXPECT_EQ(refusal({"train", "--config", "x"}, "[train]\nlr = 1\nlr = 2\n"),
            "x: train.lr must be given once, but stands there twice");
  EXPECT_EQ(refusal({"train", "--config", "x"}, "[train]\nlr\n"), "x: line \"lr\" must be [section] or key = value");
  EXPECT_THAT(refusal({"train", "stray"}), HasSubstr("stray is one argument too many"));
  EXPECT_THAT(refusal({"train", "-x"}), HasSubstr("-x is one argument too many"));
  EXPECT_THAT(refusal({"--train.lr", "1"}), HasSubstr("must come after a command"));
  EXPECT_THAT(refusal({"replay"}), HasSubstr("must be given an argument"));
  EXPECT_THAT(refusal({"replay", "a", "b"}), HasSubstr("b is one argument too many"));
}

TEST(Options, PlainFlags) {
  const auto command = parse({"replay", "--dtype", "float64", "f.h5", "--out=x.h5"});
  EXPECT_EQ(command.flags.at("dtype"), "float64");
  EXPECT_EQ(command.flags.at("out"), "x.h5");
  EXPECT_EQ(command.flags.at("tolerance"), "");
  EXPECT_EQ(command.positional, std::vector<std::string>{"f.h5"});
  EXPECT_THAT(refusal({"replay", "f.h5", "--train.lr", "1"}), HasSubstr("--train.lr is no key of baton replay"));
}

TEST(Options, SavedConfigReadsBack) {
  Config config;
  config.run.dir = "runs/a b";
  config.train.lr = 0.1 + 0.2;
  config.data.seq_len = int64_t{1} << 40;
  config.model.tie_embeddings = true;
  for (const char* prompt : {"In the beginning\nGod # \"said\"", " edges ", "\"quoted\"", "tab\tin", "a = b; [c]"}) {
    config.sample.prompt = prompt;
    const Config read = config_from_ini(to_ini(config), "saved");
    EXPECT_THAT(differences(config, read), testing::IsEmpty());
    EXPECT_EQ(read.train.lr, config.train.lr);
  }
  EXPECT_THAT(input_error([] { config_from_ini("[sample]\nprompt = \"open\n", "f"); }), HasSubstr("JSON string"));
}

TEST(Options, HelpShowsEveryKeyWithItsDefault) {
  for (const auto& args : {std::vector<std::string>{}, {"--help"}, {"-h"}, {"help"}}) {
    EXPECT_TRUE(parse(args).help);
    EXPECT_EQ(parse(args).name, "");
  }
  EXPECT_TRUE(parse({"train", "--train.lr", "1", "--help"}).help);
  EXPECT_TRUE(parse({"replay", "-h"}).help);
  EXPECT_EQ(parse({"replay", "-h"}).name, "replay");
  const std::string text = help_text("");
  Config defaults;
  for_each_key(defaults, [&](const std::string& key, const auto&, const char*) {
    EXPECT_THAT(text, HasSubstr("--" + key + " "));
  });
  EXPECT_THAT(text, HasSubstr("[train]"));
  EXPECT_THAT(text, HasSubstr("(=0.001)"));
  EXPECT_THAT(help_text("replay"), HasSubstr("--tolerance"));
  EXPECT_EQ(help_text("sample").find("--train.lr"), std::string::npos);
}

TEST(Options, ShippedConfigsAreValid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(BATON_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".cfg") continue;
    const Config config = config_from_ini(read_whole_file("--config", entry.path()), entry.path());
    EXPECT_NO_THROW(validate(config, 4)) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 5);
}

TEST(Options, MissingConfigFile) {
  EXPECT_EQ(input_error([] { read_whole_file("--config", "/nowhere/x.cfg"); }),
            "--config = /nowhere/x.cfg: must be a file that exists");
}

}  // namespace
}  // namespace baton
