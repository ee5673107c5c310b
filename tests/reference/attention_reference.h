// The truth for the attention operator, in double: the recurrence token by token, its gradients by reverse accumulation
// through the same recurrence (no chunks, no closed form), and the quadratic parallel form as a third judge.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/linear_attention.h"

namespace baton::test {

/// A whole problem in double. Layouts are those of AttentionInputs: gk [H] for fixed, [B, T, H] for scalar, ..
struct AttentionProblem {
  AttentionShape shape;
  double scale = 1.0;
  std::vector<double> q, k, v, gk, gv, h0, dout, dht;
  std::vector<uint8_t> starts;  // empty: nowhere
  int64_t span = 0, walk = 0;   // tokens of a span and a walk where a device takes long ones; 0: as many as it takes
};

/// By name: o, ht, dq, dk, dv, dh0; dgk for scalar, vector, bilinear; dgv for bilinear.
using AttentionResult = std::map<std::string, std::vector<double>>;

AttentionResult token_reference(const AttentionProblem& problem);

/// Only `o`: o_i = sum_{j <= i} (scale sum_c q_ic k_jc exp(sum of gk_c over (j, i])) v_j exp(sum of gv over (j, i])
/// plus what h0 gives (arXiv 2312.06635, section 2: the parallel form).
std::vector<double> quadratic_reference(const AttentionProblem& problem);

/// Seeded normal inputs with gates logsigmoid(normal) / 16 (fixed: slopes 2^(-8 (i + 1) / H)).
AttentionProblem random_problem(const AttentionShape& shape, uint64_t seed);

}  // namespace baton::test
