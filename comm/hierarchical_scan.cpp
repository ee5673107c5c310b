// StateScan by nodes. A rank's slice is some rows of every carry of its node: round 1 brings it the slices of the
// node's ranks, doubling what comes before the node, and the last round takes to each rank the rows of its state.
#include "comm/state_scan.h"

#include <utility>

#include "runtime/memory.h"

namespace baton {
namespace {

/// The parts of rows `wanted` of a carry that holds rows `held`.
std::vector<Tensor> parts_of(const ShardCarry& shard, const Tensor& carry, const Range& held, const Range& wanted) {
  std::vector<Tensor> parts;
  int64_t first = 0;
  for (const int64_t width : shard.widths) {
    if (width == 0) continue;
    const Tensor part = carry.rows(first, held.size() * width).view({held.size(), width});
    parts.push_back(part.rows(wanted.first - held.first, wanted.size()));
    first += part.numel();
  }
  return parts;
}

}  // namespace

Range StateScan::node_ranks(int first, int last) const {
  const int start = group_.rank() / unit_ * unit_;
  if (direction_ == Direction::kForward) return {start + first, start + last + 1};
  return {start + unit_ - 1 - last, start + unit_ - first};
}

void StateScan::begin_in_node(const Stream& stream) {
  const int R = unit_ = group_.ranks_per_node(), start = group_.rank() / R * R;
  const Range all{0, shard_.rows};
  rows_ = shard_of(all.last, R, group_.rank() - start);
  place_numel_ = rows_.size() * (shard_.numel / shard_.rows);
  const Tensor own = scratch_.rows((kNumPlaces + R - 1) * place_numel_, shard_.numel);
  write_own(own, stream);
  std::vector<Transfer> transfers;
  for (int q = 0; q < R; ++q) {
    const auto peer = static_cast<int>(node_ranks(q, q).first);
    const auto from = parts_of(shard_, own, all, shard_of(all.last, R, peer - start));
    const auto to = parts_of(shard_, node_carry(q), rows_, rows_);
    for (size_t i = 0; i < to.size(); ++i) {
      if (peer == group_.rank()) {
        copy(from[i], to[i], stream);
        continue;
      }
      if (from[i].numel() > 0) transfers.push_back({Transfer::Kind::kSend, from[i], peer});
      if (to[i].numel() > 0) transfers.push_back({Transfer::Kind::kRecv, to[i], peer});
    }
  }
  receiving_ = exchange(transfers, sent_bytes_, stream);
}

void StateScan::finish_in_node(const Stream& stream) {
  std::exchange(receiving_, nullptr)->wait();
  if (rows_.size() > 0) {
    const bool last_node = !has(ahead(unit_));
    for (int q = 1; q < unit_ - (last_node ? 1 : 0); ++q)
      shard_.compose({node_carry(q - 1), node_ranks(0, q - 1), rows_}, {node_carry(q), node_ranks(q, q), rows_},
                     node_carry(q));
    if (group_.size() > unit_) {
      distance_ = 1;
      outgoing_ = carry_at(kOwn);
      start_round(stream);
      finish_rounds(stream);
    }
    const Tensor known = carry_at(kBehind);
    for (int q = 1; q < unit_ && has(behind(unit_)); ++q)
      shard_.compose({known, ranks_behind(1, group_.size()), rows_}, {node_carry(q - 1), node_ranks(0, q - 1), rows_},
                     node_carry(q - 1));
  }
  hand_back(stream);
}

/// The q-th rank of the node is entered by what leaves the one before, the 0-th by what leaves the node before.
void StateScan::hand_back(const Stream& stream) {
  const int start = group_.rank() / unit_ * unit_;
  const Tensor entering = entering_.view({shard_.rows, shard_.widths[0]});
  std::vector<Transfer> transfers;
  for (int q = 0; q < unit_; ++q) {
    const auto peer = static_cast<int>(node_ranks(q, q).first);
    const Range theirs = shard_of(shard_.rows, unit_, peer - start);
    const bool has_state = q > 0 || has(behind(unit_)), needs_state = has(behind(1));
    const Tensor state = parts_of(shard_, q > 0 ? node_carry(q - 1) : carry_at(kBehind), rows_, rows_)[0];
    const Tensor slice = entering.rows(theirs.first, theirs.size());
    if (peer == group_.rank()) {
      if (has_state) copy(state, slice, stream);
      continue;
    }
    if (has_state && state.numel() > 0) transfers.push_back({Transfer::Kind::kSend, state, peer});
    if (needs_state && slice.numel() > 0) transfers.push_back({Transfer::Kind::kRecv, slice, peer});
  }
  if (!transfers.empty()) exchange(transfers, sent_bytes_, stream)->wait();
}

}  // namespace baton
