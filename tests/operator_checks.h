// What the operator must do over the ranks of a group; each throws Error(kComparison) where it does not.
#pragma once

#include "comm/group.h"

namespace baton::checks {

/// Every gate kind, strategy and size of nodes, with documents, empty shards and strong gates: each rank's tensors and
/// what it sends are those of as many ranks in one process, simulated on the stream's device. On a GPU by a CUDA graph
/// that was captured with other document starts, too.
void operator_has_the_bits_of_simulated_ranks(Group& group, const Stream& stream);

/// Every gate kind, strategy and size of nodes: what a rank sends and receives is the formula's, at 1, 4 and 16 times
/// as many tokens.
void traffic_is_the_formula_at_any_length(Group& group);

}  // namespace baton::checks
