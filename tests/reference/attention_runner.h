// Runs the operator on a whole problem, cut into consecutive shards by hand, and compares results.
#pragma once

#include <functional>

#include "tests/reference/attention_reference.h"

namespace baton::test {

/// The bound of a tensor, relative RMS: float64 1e-12, float32 1e-5, bfloat16 5e-3 and 1e-2 for gate gradients.
double tolerance(DType dtype, const std::string& name = "");

/// Runs all stages over the shards [cuts[i], cuts[i + 1]), the first cut 0, the last T; shards may be empty. The state
/// goes from shard to shard as it does between ranks; a single shard hands nothing on. Outputs and scratch hold NaN
/// before. With bfloat16, which the CPU does not take, gates and states are float32.
AttentionResult run_operator(const AttentionProblem& problem, DType dtype, std::vector<int64_t> cuts = {},
                             const Stream& stream = {});

/// What a run over one shard is given and asked for, beside outputs and gradients of inputs; ht is not.
struct Ends {
  bool begins = true;  // h0 and dht, else zeros
  bool dh0 = false;
  bool again = false;  // attention_states before the backward
};
AttentionResult run_without_ends(const AttentionProblem& problem, DType dtype, Ends ends, const Stream& stream = {});
/// Expects the bits of run_operator, whatever ends are wanted.
void expect_same_without_ends(AttentionProblem problem, DType dtype, const Stream& stream = {});

/// How a state, or reversed its gradient, crosses a shard's borders after carry_forward (carry_backward): `entering` is
/// known or received, then advance_forward (advance_backward) fills `leaving`, which is sent.
using Cross =
    std::function<void(bool reversed, const Tensor& entering, const Tensor& leaving, const AttentionInputs& in,
                       const AttentionChunks& chunks, const AttentionChunks& dchunks)>;

/// Runs all stages over one rank's shard; o, dq, dk, dv, dgk, dgv, the states ht and dh0 that leave. `change`, where
/// given, on a GPU: after a first run all is captured once more as a CUDA graph, then this writes other document
/// starts, then the graph runs, which makes the result.
AttentionResult run_shard(const AttentionProblem& shard, DType dtype, const Cross& cross, const Stream& stream = {},
                          const std::function<void(const Tensor& starts)>& change = {});

/// The state before `token` and its gradient (names h, dh), from a run over one shard.
AttentionResult run_states_at(const AttentionProblem& problem, DType dtype, int64_t token, const Stream& stream = {});

/// The problem with q, k, v and dout rounded to bfloat16, and gates and states to float32.
AttentionProblem rounded(AttentionProblem problem);

/// The problem's tokens [first, last) alone, with the same states.
AttentionProblem take_tokens(const AttentionProblem& problem, int64_t first, int64_t last);

/// ||x - ref|| / ||ref|| (absolute where ||ref|| is 0; gate gradients over max(||ref||, ||k * dk||), for dgv v * dv),
/// NaN if x holds one. Of each (shard, head) apart, the worst of them, when cuts are given. Where the reference's RMS
/// is below the smallest normal number of the dtype, which cannot hold it to any precision, that number stands for it.
double relative_error(const AttentionProblem& problem, const AttentionResult& ref, const AttentionResult& x,
                      DType dtype, const std::string& name, const std::vector<int64_t>& cuts = {});

/// Expects every tensor of ref in x within the tolerance of dtype.
void expect_close(const AttentionProblem& problem, const AttentionResult& ref, const AttentionResult& x, DType dtype,
                  const std::vector<int64_t>& cuts = {});

}  // namespace baton::test
