// baton eval: loss, perplexity and bits per byte of a checkpoint on data.val, at any length.
//
//   baton eval --config configs/gla-tiny.cfg --eval.seq_len 4096 --eval.by_position
#include <cmath>

#include "launch/job.h"
#include "runtime/tokenizer.h"

namespace baton {
namespace {

/// Bytes of text a token stands for, over the first tokens of the set; NaN where the text is not known.
double bytes_per_token(const Job& job, int64_t count) {
  const DataConfig& data = job.config.data;
  if (!data.tokenizer.empty()) {
    std::vector<int32_t> tokens(static_cast<size_t>(count)), targets(tokens.size());
    std::vector<uint8_t> starts(tokens.size());
    std::vector<int64_t> positions(tokens.size());
    job.val->read_val(0, count, 0, count, {tokens.data(), targets.data(), starts.data(), positions.data()});
    const std::string text = make_spm_tokenizer("data.tokenizer", data.tokenizer)->decode(tokens);
    return static_cast<double>(text.size()) / static_cast<double>(count);
  }
  return job.val->vocab() == make_byte_tokenizer()->vocab() ? 1.0 : NAN;
}

}  // namespace

ExitCode run_eval(Job& job) {
  const int64_t T = job.config.eval_length().tokens;
  std::string checkpoint;
  together(job.world, [&] {
    CHECK_INPUT(job.val.has_value(), "data.val = \"\": evaluation needs files; give a glob");
    job.val->require(job.config.eval_length());
    checkpoint = checkpoint_to_read(job.config);
  });
  Trainer trainer(job.config, Trainer::Purpose::kEvaluate, job.ranks, false);
  const RunState state = load_checkpoint("checkpoint", checkpoint, job, trainer.tensors());
  trainer.weights_changed();
  const EvalResult r = trainer.evaluate(*job.val, {});
  if (!job.root()) return ExitCode::kDone;
  const double bytes = bytes_per_token(job, std::min<int64_t>(r.tokens, int64_t{1} << 20));
  fmt::print("{} (step {}): loss {:.4f} nats a token, perplexity {:.3f}, {}{} tokens in sequences of {}\n", checkpoint,
             state.step, r.loss, std::exp(r.loss),
             std::isnan(bytes) ? "" : fmt::format("{:.4f} bits a byte, ", r.loss / std::log(2.0) / bytes), r.tokens, T);
  for (size_t i = 0; job.config.eval.by_position && i < r.by_position.size(); ++i)
    fmt::print("  positions {:>9} .. {:>9}: loss {:.4f}\n", (int64_t{1} << i) - 1,
               std::min((int64_t{1} << (i + 1)) - 2, T - 1), r.by_position[i]);
  return ExitCode::kDone;
}

}  // namespace baton
