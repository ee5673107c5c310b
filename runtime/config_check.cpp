// What values a configuration may have, and how they divide over the ranks.
#include <fmt/ranges.h>

#include <cmath>
#include <functional>
#include <limits>

#include "runtime/config.h"
#include "runtime/error.h"

namespace baton {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();  // token ids and row indices are int32
constexpr int64_t kMaxTokens = int64_t{1} << 48;                 // keeps products with sizes in bytes inside 64 bits
constexpr double kMaxReal = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::min();

/// A value against a rule; throws with both.
template <class T>
void require(bool holds, const char* key, const T& value, const std::string& rule) {
  CHECK_INPUT(holds, "{} = {}: must {}", key, value_text(value), rule);
}

void check_choice(const char* key, const std::string& value, const std::vector<std::string>& choices) {
  for (const auto& choice : choices)
    if (value == choice) return;
  const std::string first = fmt::format("{}", fmt::join(choices.begin(), choices.end() - 1, ", "));
  require(false, key, value, "be " + first + (choices.size() > 1 ? " or " : "") + choices.back());
}

void check_range(const char* key, int64_t value, int64_t low, int64_t high) {
  if (high == kMaxInt) return require(value >= low, key, value, fmt::format("be at least {}", low));
  require(value >= low && value <= high, key, value, fmt::format("lie between {} and {}", low, high));
}

void check_real(const char* key, double value, double low, double high) {
  std::string rule = fmt::format("lie between {} and {}", low, high);
  if (high == kMaxReal) rule = low == kTiny ? "be greater than 0" : fmt::format("be at least {}", low);
  require(value >= low && value <= high, key, value, rule);
}

void check_run(const RunConfig& r) {
  check_choice("run.device", r.device, {"auto", "cpu", "cuda"});
  check_choice("run.dtype", r.dtype, {"float32", "float64", "bfloat16"});
  require(r.device != "cpu" || r.dtype != "bfloat16", "run.dtype", r.dtype,
          "be float32 or float64 where run.device = cpu");
  require(r.device != "cuda" || r.dtype != "float64", "run.dtype", r.dtype,
          "be float32 or bfloat16 where run.device = cuda");
  check_range("run.seed", r.seed, 0, kMaxInt);
  check_range("run.threads", r.threads, 0, 65536);
  check_range("run.log_every", r.log_every, 1, kMaxInt);
  check_real("run.grace", r.grace, 0, kMaxReal);
  check_real("run.peak_tflops", r.peak_tflops, 0, kMaxReal);
  parse_step_range("run.profile", r.profile);
}

/// expand * width must be a whole number of dims of every head.
void check_expand(const char* key, double expand, const ModelConfig& m) {
  check_real(key, expand, kTiny, 64);
  const double dims = static_cast<double>(m.width) * expand;
  const bool whole = dims >= 1 && std::abs(dims - std::round(dims)) < 1e-6;
  require(whole && std::llround(dims) % m.heads == 0, key, expand,
          fmt::format("give a multiple of model.heads = {} dims, not {} of model.width = {}", m.heads, dims, m.width));
}

void check_model(const ModelConfig& m) {
  check_choice("model.family", m.family, {"gla", "tnl"});
  check_choice("model.mixer", m.mixer, {"none", "fixed", "scalar", "vector", "bilinear"});
  check_range("model.layers", m.layers, 1, 1 << 16);
  check_range("model.width", m.width, 1, 1 << 20);
  check_range("model.heads", m.heads, 1, 1 << 16);
  require(m.width % m.heads == 0, "model.width", m.width, fmt::format("be a multiple of model.heads = {}", m.heads));
  check_range("model.ffn", m.ffn, 0, 1 << 24);
  check_range("model.vocab", m.vocab, 0, kMaxId);
  check_range("model.low_rank", m.low_rank, 1, 1 << 20);
  check_real("model.gate_temperature", m.gate_temperature, kTiny, kMaxReal);
  check_real("model.norm_eps", m.norm_eps, kTiny, kMaxReal);
  check_real("model.init_std", m.init_std, kTiny, kMaxReal);
  check_choice("model.slope", m.slope, {"alibi", "fla"});
  check_choice("model.norm", m.norm, {"auto", "rmsnorm", "simple_rmsnorm", "layernorm"});
  if (m.family == "gla") {
    check_expand("model.expand_k", m.expand_k, m);
    check_expand("model.expand_v", m.expand_v, m);
  } else {
    require(m.mixer == "vector" || m.mixer == "fixed", "model.mixer", m.mixer,
            "be left out where model.family = tnl, whose decay is fixed");
    parse_index_list("model.lrpe_layers", m.lrpe_layers, m.layers);
  }
}

void check_data(const DataConfig& d) {
  check_choice("data.format", d.format, {"auto", "text", "llmc", "spm"});
  require(d.format != "spm" || !d.tokenizer.empty(), "data.format", d.format, "come with data.tokenizer, a model file");
  check_range("data.seq_len", d.seq_len, 1, kMaxTokens);
  check_choice("data.order", d.order, {"permuted", "stream"});
  if (d.separator != "none") {
    int64_t id = -1;
    set_value("data.separator", d.separator, id);
    require(id >= 0 && id <= kMaxId, "data.separator", d.separator, "be none or a token id");
  }
}

void check_train(const TrainConfig& t, int64_t seq_len) {
  check_range("train.steps", t.steps, 0, kMaxId);
  check_range("train.batch", t.batch, 1, kMaxId);
  require(t.batch <= kMaxTokens / seq_len, "train.batch", t.batch,
          fmt::format("be at most {}, so that a step has no more than {} tokens", kMaxTokens / seq_len, kMaxTokens));
  check_range("train.micro_batch", t.micro_batch, 0, t.batch);
  require(t.window >= 0 && t.window <= seq_len, "train.window", t.window,
          fmt::format("lie between 0 and data.seq_len = {}", seq_len));
  check_range("train.warmup", t.warmup, 0, kMaxInt);
  check_choice("train.window_mode", t.window_mode, {"exact", "truncated"});
  check_choice("train.schedule", t.schedule, {"cosine", "linear", "constant", "wsd"});
  check_real("train.lr", t.lr, 0, kMaxReal);
  require(t.lr_min >= 0 && t.lr_min <= t.lr, "train.lr_min", t.lr_min,
          fmt::format("lie between 0 and train.lr = {}", t.lr));
  for (const auto& [key, value] : {std::pair{"train.beta1", t.beta1}, {"train.beta2", t.beta2}})
    require(value >= 0 && value < 1, key, value, "be at least 0 and below 1");
  check_real("train.eps", t.eps, kTiny, kMaxReal);
  check_real("train.weight_decay", t.weight_decay, 0, kMaxReal);
  check_real("train.clip", t.clip, 0, kMaxReal);
  check_real("train.decay_fraction", t.decay_fraction, 0, 1);
}

void check_plan(const PlanConfig& p) {
  check_real("plan.memory", p.memory, 0, 1 << 20);
  parse_count_list("plan.ranks", p.ranks);
  check_range("plan.ranks_per_node", p.ranks_per_node, 1, kMaxId);
  check_real("plan.step_s", p.step_s, 0, kMaxReal);
  check_real("plan.latency", p.latency, 0, kMaxReal);
  check_real("plan.bandwidth", p.bandwidth, 0, kMaxReal);
  check_real("plan.node_latency", p.node_latency, 0, kMaxReal);
  check_real("plan.node_bandwidth", p.node_bandwidth, 0, kMaxReal);
  check_real("plan.early", p.early, 0, 1);
  check_real("plan.both_ways", p.both_ways, 1, kMaxReal);
  check_real("plan.compose_latency", p.compose_latency, 0, kMaxReal);
  check_real("plan.compose_bandwidth", p.compose_bandwidth, 0, kMaxReal);
  check_real("plan.sum_bandwidth", p.sum_bandwidth, 0, kMaxReal);
  check_real("plan.sum_exposed", p.sum_exposed, 0, 1);
}

void check_rest(const Config& c) {
  check_range("eval.every", c.eval.every, 0, kMaxInt);
  check_range("eval.tokens", c.eval.tokens, 1, kMaxTokens);
  check_range("eval.seq_len", c.eval.seq_len, 0, kMaxTokens);
  check_real("parallel.deadline", c.parallel.deadline, kTiny, kMaxReal);
  check_real("parallel.early_send", c.parallel.early_send, 0, 1);
  check_choice("parallel.scan", c.parallel.scan, {"chain", "doubling", "all_gather", "hierarchical", "auto"});
  check_range("checkpoint.every", c.checkpoint.every, 0, kMaxInt);
  check_range("checkpoint.keep", c.checkpoint.keep, 0, kMaxInt);
  require(c.checkpoint.state.empty() || c.in_stream_order(), "checkpoint.state", c.checkpoint.state,
          "come with data.order = stream");
  check_range("dump.every", c.dump.every, 0, kMaxInt);
  check_range("dump.grid", c.dump.grid, 1, kMaxTokens);
  parse_index_list("dump.layers", c.dump.layers, c.model.layers);
  for (size_t begin = 0; begin <= c.dump.what.size();) {
    const size_t end = std::min(c.dump.what.find(',', begin), c.dump.what.size());
    const std::string part = c.dump.what.substr(begin, end - begin);
    require(part == "state" || part == "dstate" || part == "gate", "dump.what", c.dump.what,
            "be a list of state, dstate and gate");
    begin = end + 1;
  }
  check_plan(c.plan);
  check_range("sample.tokens", c.sample.tokens, 0, kMaxTokens);
  check_range("sample.top_k", c.sample.top_k, 0, kMaxInt);
  check_range("sample.seed", c.sample.seed, 0, kMaxInt);
  check_real("sample.temperature", c.sample.temperature, 0, kMaxReal);
}

void check_ranks(const Config& c, int64_t world_size) {
  check_range("parallel.sp", c.parallel.sp, 0, kMaxId);
  const int64_t sp = c.parallel.sp == 0 ? world_size : c.parallel.sp;
  require(world_size % sp == 0, "parallel.sp", sp, fmt::format("divide the number of ranks, {}", world_size));
  const int64_t dp = world_size / sp;
  require(c.train.batch % dp == 0, "train.batch", c.train.batch,
          fmt::format("be a multiple of the {} groups that {} ranks make with parallel.sp = {}", dp, world_size, sp));
  const int64_t per_group = c.train.batch / dp;
  require(c.train.micro_batch == 0 || per_group % c.train.micro_batch == 0, "train.micro_batch", c.train.micro_batch,
          fmt::format("divide the {} sequences of a dp rank (train.batch / dp)", per_group));
}

}  // namespace

void validate(const Config& config, int world_size) {
  check_run(config.run);
  check_model(config.model);
  check_data(config.data);
  check_train(config.train, config.data.seq_len);
  check_rest(config);
  check_ranks(config, world_size);
}

}  // namespace baton
