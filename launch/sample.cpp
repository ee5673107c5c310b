// baton sample: continues a prompt with a checkpoint's model.
//
//   baton sample --config configs/gla-tiny.cfg --sample.prompt "In the beginning" --sample.tokens 400
#include <cstdio>

#include "launch/job.h"
#include "launch/sampler.h"
#include "runtime/tokenizer.h"

namespace baton {

ExitCode run_sample(Job& job) {
  const Config& config = job.config;
  std::string checkpoint;
  together(job.world, [&] {
    checkpoint = checkpoint_to_read(config);
    if (job.config.model.vocab == 0)
      job.config.model.vocab =
          config_from_ini(CheckpointReader(checkpoint, false).config_ini(), checkpoint).model.vocab;
  });
  Sampler sampler(config.model, config.run.dtype == "float64" ? DType::kFloat64 : DType::kFloat32);
  load_checkpoint("checkpoint", checkpoint, job, parameter_tensors(sampler.model().parameters()));
  if (!job.root()) return ExitCode::kDone;  // one sequence, one rank
  const auto tokenizer = config.data.tokenizer.empty() ? make_byte_tokenizer()
                                                       : make_spm_tokenizer("data.tokenizer", config.data.tokenizer);
  std::vector<int32_t> text = tokenizer->encode(config.sample.prompt);
  if (text.empty()) text = tokenizer->encode("\n");
  const std::vector<double>* logits = &sampler.feed(text);
  std::fputs(config.sample.prompt.c_str(), stdout);
  std::string shown = tokenizer->decode(text);
  for (int64_t i = 0; i < config.sample.tokens; ++i) {
    text.push_back(draw_token(*logits, config.sample, i));
    logits = &sampler.feed({text.back()});
    if (config.data.tokenizer.empty()) {
      std::fputs(tokenizer->decode({text.back()}).c_str(), stdout);
      continue;
    }
    const std::string all = tokenizer->decode(text);  // pieces depend on their neighbours
    if (all.size() > shown.size()) std::fputs(all.c_str() + shown.size(), stdout);
    shown = all;
  }
  std::fputs("\n", stdout);
  return ExitCode::kDone;
}

}  // namespace baton
