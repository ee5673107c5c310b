// The one list of configuration keys: it drives parsing, help, printing, comparing and saving.
#pragma once

#include "runtime/config.h"

namespace baton {

/// Calls f(key, value, help) for every key, in the order they are shown. value is a reference to std::string, int64_t,
/// double or bool inside c. The one list of keys.
template <class C, class F>
void for_each_key(C& c, F&& f) {
  f("run.dir", c.run.dir, "run directory; empty: runs/CONFIGNAME");
  f("run.device", c.run.device, "auto, cpu or cuda");
  f("run.dtype", c.run.dtype, "float32, float64 (CPU) or bfloat16 (GPU)");
  f("run.seed", c.run.seed, "seed of initialisation and data order");
  f("run.threads", c.run.threads, "threads a rank; 0: cores / ranks of the host");
  f("run.log_every", c.run.log_every, "steps between console lines");
  f("run.grace", c.run.grace, "seconds after a stop request before the step under way is dropped");
  f("run.peak_tflops", c.run.peak_tflops, "peak of one rank, for MFU; 0: measured at start by a matrix product");
  f("run.profile", c.run.profile, "steps first:last that a CUDA profiler records, or none");
  f("model.family", c.model.family, "gla or tnl (TransNormerLLM)");
  f("model.mixer", c.model.mixer, "gate kind of the GLA block: none, fixed, scalar, vector or bilinear");
  f("model.layers", c.model.layers, "number of layers");
  f("model.width", c.model.width, "width D of the residual stream");
  f("model.heads", c.model.heads, "number of heads");
  f("model.expand_k", c.model.expand_k, "key dims of all heads / width (gla)");
  f("model.expand_v", c.model.expand_v, "value dims of all heads / width (gla)");
  f("model.ffn", c.model.ffn, "inner width of the feed-forward; 0: the family's default");
  f("model.vocab", c.model.vocab, "vocabulary; 0: that of the data");
  f("model.low_rank", c.model.low_rank, "rank of the gate projection");
  f("model.gate_temperature", c.model.gate_temperature, "log gate = logsigmoid(x) / temperature");
  f("model.gate_bias", c.model.gate_bias, "bias of the output-gate projection");
  f("model.norm", c.model.norm, "auto, rmsnorm, simple_rmsnorm or layernorm");
  f("model.norm_eps", c.model.norm_eps, "epsilon of norms");
  f("model.tie_embeddings", c.model.tie_embeddings, "share embedding and head");
  f("model.init_std", c.model.init_std, "standard deviation of initial weights");
  f("model.slope", c.model.slope, "decay of Lightning heads: alibi or fla");
  f("model.lrpe_layers", c.model.lrpe_layers, "layers with LRPE (tnl): all, none or a list such as 0,2");
  f("data.train", c.data.train, "training files (glob)");
  f("data.val", c.data.val, "validation files (glob)");
  f("data.format", c.data.format,
    "auto, text (bytes), llmc (token shards) or spm (text through a SentencePiece model)");
  f("data.tokenizer", c.data.tokenizer, "SentencePiece model file, for spm");
  f("data.seq_len", c.data.seq_len, "tokens T_total of a sequence");
  f("data.separator", c.data.separator, "token id after which a document starts, or none");
  f("data.order", c.data.order,
    "permuted, or stream: each row of the batch reads on where it stopped, its state kept from step to step");
  f("train.steps", c.train.steps, "optimizer steps");
  f("train.batch", c.train.batch, "sequences an optimizer step, over all ranks");
  f("train.micro_batch", c.train.micro_batch, "sequences a dp rank holds at once; 0: batch / dp");
  f("train.window", c.train.window, "tokens that all ranks of an sp_group hold at once; 0: the whole sequence");
  f("train.window_mode", c.train.window_mode, "exact or truncated (no gradient across windows)");
  f("train.lr", c.train.lr, "peak learning rate");
  f("train.lr_min", c.train.lr_min, "final learning rate");
  f("train.schedule", c.train.schedule, "cosine, linear, constant or wsd, after a linear warm-up");
  f("train.warmup", c.train.warmup, "warm-up steps");
  f("train.decay_fraction", c.train.decay_fraction, "part of the steps in which wsd decays");
  f("train.beta1", c.train.beta1, "decay of AdamW's first moment");
  f("train.beta2", c.train.beta2, "decay of AdamW's second moment");
  f("train.eps", c.train.eps, "epsilon of AdamW");
  f("train.weight_decay", c.train.weight_decay, "decoupled weight decay of AdamW; none on norms and biases");
  f("train.clip", c.train.clip, "bound of the global gradient norm; 0: none");
  f("eval.every", c.eval.every, "steps between validations; 0: at the end only");
  f("eval.tokens", c.eval.tokens, "tokens of the held-out set that are used");
  f("eval.seq_len", c.eval.seq_len, "tokens of an evaluated sequence; 0: data.seq_len");
  f("eval.by_position", c.eval.by_position, "also print the loss by position in the sequence");
  f("parallel.sp", c.parallel.sp, "ranks that share a sequence; 0: all");
  f("parallel.scan", c.parallel.scan,
    "strategy of the state scan: chain, doubling, all_gather, hierarchical or auto (the cheapest, as measured)");
  f("parallel.early_send", c.parallel.early_send,
    "decay of a shard under which a rank of a chain hands on before it receives, as if nothing were left (fixed decays "
    "alone; inexact); 0: where nothing is");
  f("parallel.deadline", c.parallel.deadline, "seconds that a rank waits for another before the job ends");
  f("checkpoint.every", c.checkpoint.every, "steps between checkpoints; 0: at the end only");
  f("checkpoint.keep", c.checkpoint.keep, "newest checkpoints kept; 0: all");
  f("checkpoint.resume", c.checkpoint.resume, "auto (newest, else start), latest or a path; empty: start");
  f("checkpoint.load", c.checkpoint.load, "checkpoint of which only the weights are taken");
  f("checkpoint.state", c.checkpoint.state,
    "checkpoint of which the kept state is taken to start from (data.order = stream)");
  f("dump.every", c.dump.every, "steps between state dumps; 0: none");
  f("dump.what", c.dump.what, "of state, dstate, gate");
  f("dump.layers", c.dump.layers, "all or a list such as 0,3");
  f("dump.grid", c.dump.grid, "global positions dumped: multiples of this");
  f("plan.memory", c.plan.memory, "GiB of one GPU, for the largest window; 0: those of the device, where there is one");
  f("plan.ranks", c.plan.ranks, "numbers of ranks such as 8,64,256, for predicted step times; empty: none");
  f("plan.ranks_per_node", c.plan.ranks_per_node, "ranks of a node, one after another");
  f("plan.step_s", c.plan.step_s, "seconds of a step on one rank, as measured: step_s of metrics.jsonl");
  f("plan.latency", c.plan.latency, "microseconds of a message between nodes, beside its bytes");
  f("plan.bandwidth", c.plan.bandwidth, "GB/s of one rank's messages to another node while all ranks send");
  f("plan.node_latency", c.plan.node_latency, "plan.latency inside a node");
  f("plan.node_bandwidth", c.plan.node_bandwidth,
    "plan.bandwidth inside a node; 0: latency and bandwidth as between nodes");
  f("plan.early", c.plan.early, "as so many times its bytes counts a message sent before it is waited for, on GPUs");
  f("plan.both_ways", c.plan.both_ways, "as so many times its bytes counts a message that meets another");
  f("plan.compose_latency", c.plan.compose_latency, "microseconds of a composition of carries, beside its bytes");
  f("plan.compose_bandwidth", c.plan.compose_bandwidth, "GB/s that compositions of carries read and write");
  f("plan.sum_bandwidth", c.plan.sum_bandwidth,
    "GB/s of sums of gradients in a node, 2 (ranks - 1) / ranks of the bytes over the time; 0: that of messages");
  f("plan.sum_exposed", c.plan.sum_exposed,
    "part of a sum of gradients, from 0 to 1, by which it delays the GPU's work beside it");
  f("sample.prompt", c.sample.prompt, "text to continue");
  f("sample.tokens", c.sample.tokens, "tokens to sample");
  f("sample.temperature", c.sample.temperature, "softmax temperature; 0: the likeliest token");
  f("sample.top_k", c.sample.top_k, "sample among the k likeliest tokens; 0: all");
  f("sample.seed", c.sample.seed, "seed of sampling");
}

}  // namespace baton
