#include "comm/state_scan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
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

int step_of(Direction direction) { return direction == Direction::kForward ? 1 : -1; }

}  // namespace

const char* to_string(ScanStrategy strategy) {
  switch (strategy) {
    case ScanStrategy::kChain:
      return "chain";
  }
  return "unknown";
}

ScanStrategy parse_scan_strategy(const std::string& word) {
  CHECK_INPUT(word == "chain", "parallel.scan = {}: it must be chain", word);
  return ScanStrategy::kChain;
}

void StateScan::begin(Direction direction, const Tensor& entering, const Tensor& leaving, Advance advance,
                      const Stream& stream) {
  CHECK(!advance_, "a scan is begun before the one under way is finished");
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
  advance_ = std::move(advance);
  const int previous = group_.rank() - step_of(direction);
  if (has(previous)) {
    receiving_ = group_.recv(entering_, previous, stream);
  } else {
    advance_and_send(stream);
  }
}

void StateScan::finish(const Stream& stream) {
  CHECK(advance_, "no scan is under way");
  if (receiving_) {
    std::exchange(receiving_, nullptr)->wait();
    advance_and_send(stream);
  }
  if (stream.device.type == DeviceType::kCpu) settle();
  advance_ = nullptr;
}

void StateScan::settle() {
  if (sending_) std::exchange(sending_, nullptr)->wait();
}

void StateScan::advance_and_send(const Stream& stream) {
  advance_(entering_, leaving_);
  const int next = group_.rank() + step_of(direction_);
  if (has(next)) sending_ = exchange({{Transfer::Kind::kSend, leaving_, next}}, sent_bytes_, stream);
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
  CHECK(!advance_, "a wrap is asked for while a scan is under way");
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
  if (!transfers.empty()) sending_ = exchange(transfers, wrapped_bytes_, stream);
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
