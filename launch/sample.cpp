// baton sample: continues a prompt with a checkpoint's model.
//
//   baton sample --config configs/gla-tiny.cfg --sample.prompt "In the beginning" --sample.tokens 400
#include <cstdio>

#include "launch/job.h"
#include "launch/sampler.h"
#include "launch/text_stream.h"

namespace baton {
namespace {

/// Bytes as they are, zeros too.
void show(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::unique_ptr<Tokenizer> make_tokenizer(const Config& c) {
  auto tokenizer =
      c.data.tokenizer.empty() ? make_byte_tokenizer() : make_spm_tokenizer("data.tokenizer", c.data.tokenizer);
  CHECK_INPUT(!c.data.tokenizer.empty() || c.model.vocab == tokenizer->vocab(),
              "data.tokenizer = \"\": the model has {} token ids, so its text is not made of bytes; give its tokenizer",
              c.model.vocab);
  CHECK_INPUT(tokenizer->vocab() <= c.model.vocab, "data.tokenizer = {}: has {} token ids, the model only {}",
              c.data.tokenizer, tokenizer->vocab(), c.model.vocab);
  return tokenizer;
}

}  // namespace

ExitCode run_sample(Job& job) {
  Config& config = job.config;
  std::string checkpoint;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<int32_t> prompt;
  together(job.world, [&] {
    checkpoint = checkpoint_to_read(config);
    if (config.model.vocab == 0)
      config.model.vocab = config_from_ini(CheckpointReader(checkpoint, false).config_ini(), checkpoint).model.vocab;
    tokenizer = make_tokenizer(config);
    prompt = tokenizer->encode(config.sample.prompt);
    if (prompt.empty()) prompt = tokenizer->encode("\n");
    CHECK_INPUT(!prompt.empty(), "sample.prompt = \"\": this tokenizer needs a text to begin with");
  });
  Sampler sampler(config.model, parse_dtype(config.run.dtype), job.ranks.stream);
  load_checkpoint("checkpoint", checkpoint, job, parameter_tensors(sampler.model().parameters()));
  sampler.model().refresh_operands(job.ranks.stream);
  if (!job.root()) return ExitCode::kDone;  // one sequence, one rank
  TextStream stream(*tokenizer);
  for (int32_t token : prompt) stream.put(token);
  stream.finish();
  show(config.sample.prompt);
  const std::vector<double>* logits = &sampler.feed(prompt);
  for (int64_t i = 0; i < config.sample.tokens; ++i) {
    // A vocabulary may be padded past the tokenizer's.
    const int32_t token =
        draw_token(std::span(*logits).first(static_cast<size_t>(tokenizer->vocab())), config.sample, i);
    show(stream.put(token));
    logits = &sampler.feed({token});
  }
  show(stream.finish() + "\n");
  return ExitCode::kDone;
}

}  // namespace baton
