#include "comm/state_scan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>

#include "runtime/memory.h"

namespace baton {
namespace {

/// What neighbours tell each other of a state: dtype, number of dimensions, dimensions.
using Header = std::array<int64_t, 2 + Shape::kMaxRank>;

Header header_of(const Tensor& state) {
  Header header{static_cast<int64_t>(state.dtype), state.shape.rank()};
  for (int i = 0; i < state.shape.rank(); ++i) header[2 + i] = state.shape[i];
  return header;
}

std::string describe(const Header& header) {
  const auto num_dims = static_cast<size_t>(std::clamp<int64_t>(header[1], 0, Shape::kMaxRank));
  return fmt::format("{} [{}]", to_string(static_cast<DType>(header[0])),
                     fmt::join(std::span(header).subspan(2, num_dims), ", "));
}

Tensor tensor_of(Header& header) { return {header.data(), Shape{2 + Shape::kMaxRank}, DType::kInt64, {}}; }

constexpr std::array kStrategyNames{"chain", "doubling", "all_gather", "hierarchical"};

int step_of(Direction direction) { return direction == Direction::kForward ? 1 : -1; }

}  // namespace

const char* to_string(ScanStrategy strategy) { return kStrategyNames[static_cast<size_t>(strategy)]; }

ScanStrategy parse_scan_strategy(const std::string& key, const std::string& word) {
  const auto found = std::find(kStrategyNames.begin(), kStrategyNames.end(), word);
  CHECK_INPUT(found != kStrategyNames.end(), "{} = {}: must be chain, doubling, all_gather or hierarchical", key, word);
  return static_cast<ScanStrategy>(found - kStrategyNames.begin());
}

int StateScan::doubling_rounds(int num_ranks) { return std::bit_width(static_cast<unsigned>(num_ranks - 1)); }

ScanStrategy StateScan::on_nodes(ScanStrategy strategy, const Group& group) {
  const bool one_a_node = strategy == ScanStrategy::kHierarchical && group.ranks_per_node() == 1;
  return one_a_node ? ScanStrategy::kDoubling : strategy;
}

int64_t StateScan::scratch_numel(ScanStrategy strategy, const Group& group, int64_t carry_numel, int64_t rows) {
  const int64_t P = group.size(), R = group.ranks_per_node();
  if (P == 1) return 0;
  switch (on_nodes(strategy, group)) {
    case ScanStrategy::kChain:
      return P > 2 ? carry_numel : 0;  // no rank between first and last
    case ScanStrategy::kDoubling:
      return kNumPlaces * carry_numel;
    case ScanStrategy::kAllGather:
      return P * carry_numel;
    case ScanStrategy::kHierarchical:  // the shard's own, and slices
      CHECK(rows > 0, "a scan by nodes needs a carry of rows");
      return carry_numel + (kNumPlaces + R - 1) * ((rows + R - 1) / R) * (carry_numel / rows);
  }
  return 0;
}

void StateScan::begin(Direction direction, const Tensor& entering, const Tensor& leaving, ShardCarry shard,
                      const Stream& stream) {
  CHECK(!shard_.advance, "a scan is begun before the one under way is finished");
  CHECK(entering.shape == leaving.shape && entering.dtype == leaving.dtype,
        "the state that enters is {} {}, the one that leaves {} {}", to_string(entering.dtype), entering.shape.str(),
        to_string(leaving.dtype), leaving.shape.str());
  const auto key = fmt::format("{} {} {}", step_of(direction), to_string(entering.dtype), entering.shape.str());
  if (std::find(agreed_.begin(), agreed_.end(), key) == agreed_.end()) {
    check_neighbours(entering);
    agreed_.push_back(key);
  }
  settle();
  direction_ = direction;
  entering_ = entering;
  leaving_ = leaving;
  shard_ = std::move(shard);
  place_numel_ = shard_.numel;
  rows_ = {};
  unit_ = 1;
  const bool is_first = !has(behind(1));
  if (is_first) shard_.advance(entering_, leaving_);
  if (group_.size() == 1) return;
  const bool sends_early = !is_first && has(ahead(1)) && shard_.forgets;
  if (strategy_ != ScanStrategy::kChain || sends_early) {
    const int64_t needed = scratch_numel(strategy_, group_, shard_.numel, shard_.rows);
    CHECK(scratch_.defined() && scratch_.numel() >= needed,
          "a scan by {} of carries of {} numbers needs scratch for {}", to_string(strategy_), shard_.numel, needed);
  }
  switch (strategy_) {
    case ScanStrategy::kChain:
      if (is_first) return send_on(leaving_, stream);
      if (sends_early) {
        shard_.own(carry_at(kOwn));
        send_on(state_of(carry_at(kOwn)), stream);
      }
      receiving_ = group_.recv(entering_, behind(1), stream);
      return;
    case ScanStrategy::kDoubling:
      distance_ = 1;
      outgoing_ = carry_at(kOwn);
      write_own(outgoing_, stream);
      return start_round(stream);
    case ScanStrategy::kAllGather:
      return write_own(carry_at(group_.rank()), stream);
    case ScanStrategy::kHierarchical:
      return begin_in_node(stream);
  }
}

void StateScan::finish(const Stream& stream) {
  CHECK(shard_.advance, "no scan is under way");
  Tensor arrived;
  if (group_.size() > 1 && strategy_ == ScanStrategy::kDoubling) arrived = finish_rounds(stream);
  if (group_.size() > 1 && strategy_ == ScanStrategy::kAllGather) arrived = gather(stream);
  if (group_.size() > 1 && strategy_ == ScanStrategy::kHierarchical) finish_in_node(stream);
  if (receiving_) std::exchange(receiving_, nullptr)->wait();
  if (has(behind(1))) {
    if (arrived.defined()) copy(state_of(arrived), entering_, stream);
    shard_.advance(entering_, leaving_);
    if (strategy_ == ScanStrategy::kChain && !shard_.forgets) send_on(leaving_, stream);
  }
  if (stream.device.type == DeviceType::kCpu) settle();
  shard_ = {};
}

void StateScan::settle() {
  for (const PendingPtr& pending : std::exchange(sending_, {})) pending->wait();
}

void StateScan::send_on(const Tensor& state, const Stream& stream) {
  if (has(ahead(1))) sending_.push_back(exchange({{Transfer::Kind::kSend, state, ahead(1)}}, sent_bytes_, stream));
}

Range StateScan::ranks_behind(int nearest, int farthest) const {
  const int mine = group_.rank() / unit_, last = group_.size() / unit_ - 1, step = step_of(direction_);
  const int a = std::clamp(mine - step * nearest, 0, last), b = std::clamp(mine - step * farthest, 0, last);
  return {std::min(a, b) * unit_, (std::max(a, b) + 1) * unit_};
}

/// The first rank's carry is the state that leaves it: nothing comes before, so its decays are never applied.
void StateScan::write_own(const Tensor& carry, const Stream& stream) {
  if (has(behind(1))) return shard_.own(carry);
  copy(leaving_, state_of(carry), stream);
}

/// What goes out is the carry of this unit and the distance_ - 1 units behind it; so is what comes in, of the sender.
void StateScan::start_round(const Stream& stream) {
  const int to = ahead(distance_ * unit_), from = behind(distance_ * unit_);
  std::vector<Transfer> transfers;
  if (has(to)) transfers.push_back({Transfer::Kind::kSend, outgoing_, to});
  if (has(from)) transfers.push_back({Transfer::Kind::kRecv, carry_at(distance_ == 1 ? kBehind : kIncoming), from});
  if (transfers.empty()) return;
  PendingPtr round = exchange(transfers, sent_bytes_, stream);
  if (has(from))
    receiving_ = std::move(round);
  else  // what goes out will not change any more: no need to wait until it is taken
    sending_.push_back(std::move(round));
}

/// Before the round of distance d a unit has the carry of the d - 1 units behind it, after it that of 2 d - 1. Before
/// the first there is nothing, so any number of units will do; what has reached the first is the state itself.
Tensor StateScan::finish_rounds(const Stream& stream) {
  const Tensor known = carry_at(kBehind);
  for (;;) {
    if (receiving_) std::exchange(receiving_, nullptr)->wait();
    const int d = distance_;
    distance_ *= 2;
    const bool received = has(behind(d * unit_));
    if (received && d > 1)
      shard_.compose({carry_at(kIncoming), ranks_behind(d, 2 * d - 1), rows_}, {known, ranks_behind(1, d - 1), rows_},
                     known);
    if (distance_ * unit_ >= group_.size()) return known;
    if (received && has(ahead(distance_ * unit_))) {
      outgoing_ = carry_at(kOutgoing);
      shard_.compose({known, ranks_behind(1, distance_ - 1), rows_}, {carry_at(kOwn), ranks_behind(0, 0), rows_},
                     outgoing_);
    }
    start_round(stream);
  }
}

Tensor StateScan::gather(const Stream& stream) {
  const int num_behind = direction_ == Direction::kForward ? group_.rank() : group_.size() - 1 - group_.rank();
  const int64_t before = group_.traffic().collective_bytes;
  group_.all_gather(carry_at(group_.rank()), scratch_.rows(0, group_.size() * shard_.numel), stream);
  sent_bytes_ += group_.traffic().collective_bytes - before;
  const Tensor sum = carry_at(behind(num_behind));
  for (int distance = num_behind - 1; distance > 0; --distance)
    shard_.compose({sum, ranks_behind(distance + 1, num_behind)},
                   {carry_at(behind(distance)), ranks_behind(distance, distance)}, sum);
  return sum;
}

/// All messages are posted before any is waited for, and each rank sends to both sides whatever it holds, so that the
/// exchange can neither block nor leave a neighbour without an answer.
void StateScan::check_neighbours(const Tensor& state) {
  const Stream host;
  struct Neighbour {
    int rank;
    Header header{};
    PendingPtr sending, receiving;
  };
  Header mine = header_of(state);
  std::array<Neighbour, 2> neighbours{Neighbour{group_.rank() - 1, {}, {}, {}},
                                      Neighbour{group_.rank() + 1, {}, {}, {}}};
  for (Neighbour& other : neighbours) {
    if (!has(other.rank)) continue;
    other.receiving = group_.recv(tensor_of(other.header), other.rank, host);
    other.sending = group_.send(tensor_of(mine), other.rank, host);
  }
  for (Neighbour& other : neighbours) {
    if (!has(other.rank)) continue;
    other.receiving->wait();
    other.sending->wait();
  }
  for (const Neighbour& other : neighbours) {
    if (!has(other.rank)) continue;
    const bool first = group_.rank() < other.rank;
    CHECK(other.header == mine, "sp_rank {} hands on a state of {} and sp_rank {} one of {}: they must be equal",
          first ? group_.rank() : other.rank, describe(first ? mine : other.header), first ? other.rank : group_.rank(),
          describe(first ? other.header : mine));
  }
}

void StateScan::wrap(Direction direction, const std::vector<Tensor>& leaving, const std::vector<Tensor>& entering,
                     const Stream& stream) {
  CHECK(!shard_.advance, "a wrap is asked for while a scan is under way");
  const int last = group_.size() - 1;
  const int from = direction == Direction::kForward ? last : 0;
  const int to = last - from;
  if (from == to) {
    CHECK(leaving.size() == entering.size(), "{} states leave and {} enter", leaving.size(), entering.size());
    for (size_t i = 0; i < leaving.size(); ++i) copy(leaving[i], entering[i], stream);
    return;
  }
  settle();
  std::vector<Transfer> transfers;
  if (group_.rank() == from)
    for (const Tensor& x : leaving) transfers.push_back({Transfer::Kind::kSend, x, to});
  if (group_.rank() == to)
    for (const Tensor& x : entering) transfers.push_back({Transfer::Kind::kRecv, x, from});
  if (!transfers.empty()) sending_.push_back(exchange(transfers, wrapped_bytes_, stream));
  // What was received is needed by whatever comes next on the stream; what was sent, only once it is written again.
  if (group_.rank() == to || stream.device.type == DeviceType::kCpu) settle();
}

PendingPtr StateScan::exchange(const std::vector<Transfer>& transfers, int64_t& counter, const Stream& stream) {
  const int64_t before = group_.traffic().sent_bytes;
  PendingPtr pending = group_.exchange(transfers, stream);
  counter += group_.traffic().sent_bytes - before;
  return pending;
}

}  // namespace baton
