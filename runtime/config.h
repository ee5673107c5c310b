// The configuration of a run: one struct a section. config_keys.h lists the keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baton {

struct RunConfig {
  std::string dir, device = "auto", dtype = "float32", profile = "none";
  int64_t seed = 1, threads = 0, log_every = 1;
  double grace = 60, peak_tflops = 0;
};

struct ModelConfig {
  std::string family = "gla", mixer = "vector", norm = "auto", slope = "alibi";
  int64_t layers = 4, width = 128, heads = 4, ffn = 0, vocab = 0, low_rank = 16;
  double expand_k = 0.5, expand_v = 1.0, gate_temperature = 16, norm_eps = 1e-6, init_std = 0.02;
  bool tie_embeddings = false, gate_bias = false;
  std::string lrpe_layers = "0";

  int64_t key_dim() const;        // K of one head, before LRPE doubles it
  int64_t value_dim() const;      // V of one head
  int64_t ffn_dim() const;        // ffn, or the family's default where it is 0
  std::string norm_name() const;  // norm, or the family's where it is auto
};

struct DataConfig {
  std::string train, val, format = "auto", tokenizer, separator = "none", order = "permuted";
  int64_t seq_len = 512;
};

struct TrainConfig {
  int64_t steps = 100, batch = 8, micro_batch = 0, window = 0, warmup = 0;
  std::string window_mode = "exact", schedule = "cosine";
  double lr = 1e-3, lr_min = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip = 1,
         decay_fraction = 0.2;
};

struct EvalConfig {
  int64_t every = 0, tokens = 65536, seq_len = 0;
  bool by_position = false;
};

struct ParallelConfig {
  int64_t sp = 0;
  double deadline = 600;  // seconds
  std::string scan = "chain";
  double early_send = 0;
};

struct CheckpointConfig {
  int64_t every = 0, keep = 2;
  std::string resume, load, state;
};

struct DumpConfig {
  int64_t every = 0, grid = 64;
  std::string what = "state,dstate,gate", layers = "all";
};

struct PlanConfig {
  double memory = 0;  // GiB
  std::string ranks;
  int64_t ranks_per_node = 8;
  double step_s = 0;
  double latency = 0, bandwidth = 0, node_latency = 0, node_bandwidth = 0;  // us, GB/s
  double early = 1, both_ways = 1;                                          // bytes count so often
  double compose_latency = 0, compose_bandwidth = 0;
  double sum_bandwidth = 0, sum_exposed = 0;  // GB/s; a share
};

struct SampleConfig {
  std::string prompt;
  int64_t tokens = 256, top_k = 0, seed = 1;
  double temperature = 0.8;
};

/// A length of sequences, and the key that sets it.
struct SequenceLength {
  int64_t tokens;
  const char* key;
};

struct Config {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  EvalConfig eval;
  ParallelConfig parallel;
  CheckpointConfig checkpoint;
  DumpConfig dump;
  PlanConfig plan;
  SampleConfig sample;

  /// A GPU is neither excluded by run.device nor by run.dtype.
  bool may_use_gpu() const { return run.device != "cpu" && run.dtype != "float64"; }
  bool in_stream_order() const { return data.order == "stream"; }
  /// What the training data must hold: a sequence, or one for every row of the batch.
  SequenceLength train_length() const {
    if (in_stream_order()) return {train.batch * data.seq_len, "train.batch x data.seq_len"};
    return {data.seq_len, "data.seq_len"};
  }
  /// eval.seq_len, or data.seq_len where it is 0.
  SequenceLength eval_length() const {
    if (eval.seq_len > 0) return {eval.seq_len, "eval.seq_len"};
    return {data.seq_len, "data.seq_len"};
  }
};

/// "key = value" lines by section, as a config file; what run.dir/config.cfg holds. A text that an INI line cannot hold
/// as it stands (with '#', a line end, spaces at its ends) is written as a JSON string.
std::string to_ini(const Config& config);

/// Throws an input error naming key, value and rule. Looks at values alone, and at how they divide over the ranks.
void validate(const Config& config, int world_size);

/// Sets one value from its text; an input error names key, text and rule. Numbers are whole or finite, booleans true or
/// false.
void set_value(const std::string& key, const std::string& text, std::string& value);
void set_value(const std::string& key, const std::string& text, int64_t& value);
void set_value(const std::string& key, const std::string& text, double& value);
void set_value(const std::string& key, const std::string& text, bool& value);

/// The text of a value: set_value reads the same value back.
std::string value_text(const std::string& value);
std::string value_text(int64_t value);
std::string value_text(double value);
std::string value_text(bool value);

/// Keys whose values differ, as "key: value in a -> value in b".
std::vector<std::string> differences(const Config& a, const Config& b);

/// The name nearest to `wrong` by edit distance; one given without its section is compared without, one
/// that `wrong` abbreviates comes first.
std::string nearest_name(const std::string& wrong, const std::vector<std::string>& names);

/// Comma-separated indices below `count`, or "all" or "none". Throws an input error naming `key`.
std::vector<int64_t> parse_index_list(const std::string& key, const std::string& text, int64_t count);

/// Comma-separated counts from 1 on; none where the text is empty. Throws an input error naming `key`.
std::vector<int64_t> parse_count_list(const std::string& key, const std::string& text);

/// Steps "first:last", counted from 1, or "none". Throws an input error naming `key`.
struct StepRange {
  int64_t first = 0, last = -1;
  bool contains(int64_t step) const { return step >= first && step <= last; }
};
StepRange parse_step_range(const std::string& key, const std::string& text);

}  // namespace baton
