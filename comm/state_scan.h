// state_scan: the exclusive scan of carries over an sp_group. Rank r receives the state that enters its shard, applies
// its own carry, and hands what leaves on to rank r + 1 (forward) or r - 1 (reversed, for the state's gradient).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/group.h"

namespace baton {

enum class Direction { kForward, kReversed };
enum class ScanStrategy { kChain };  // chain: point to point, the default and the reference

const char* to_string(ScanStrategy strategy);
ScanStrategy parse_scan_strategy(const std::string& word);

/// Applies this rank's carry: reads `entering`, fills `leaving`. Passed in, since comm knows no attention.
using Advance = std::function<void(const Tensor& entering, const Tensor& leaving)>;

/// One scan at a time, reused for all layers. begin and finish are apart so that independent work can run between.
class StateScan {
 public:
  StateScan(Group& group, ScanStrategy strategy) : group_(group), strategy_(strategy) {}

  /// entering, leaving: the state [B, H, K, V] or its gradient, owned by the caller until finish returns. On the first
  /// rank (the last, reversed) `entering` is an input: what the whole stretch starts from; elsewhere it is received.
  /// A rank that needs no message advances and sends here. Neighbours compare shape and dtype before the first
  /// transfer of each shape and direction, and both throw where they differ.
  void begin(Direction direction, const Tensor& entering, const Tensor& leaving, Advance advance, const Stream& stream);

  /// Waits for the state, advances, sends. Afterwards `entering` and `leaving` hold their values. On a device all this
  /// is in stream order, nothing blocks the host, and `leaving` must not be written before the next begin, wrap or
  /// settle, since its send may still be reading it: the stream does not wait for the next rank to have taken it.
  void finish(const Stream& stream);

  /// Orders the stream after every send so far; needed before the end of a graph capture.
  void settle();

  /// Between windows: the last rank's leaving states become the first rank's entering states of the next window
  /// (reversed: the first rank's become the last's), one tensor a layer; a copy on a group of one. Collective; the
  /// other ranks' tensors are not looked at. Not while a scan is under way.
  void wrap(Direction direction, const std::vector<Tensor>& leaving, const std::vector<Tensor>& entering,
            const Stream& stream);

  /// Bytes that this rank has sent in wrap so far.
  int64_t wrapped_bytes() const { return wrapped_bytes_; }

  /// Bytes that this rank has sent in the scan so far; of a chain 4 B H K V (float32) a call where a next rank exists.
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  void advance_and_send(const Stream& stream);
  void check_neighbours(const Tensor& state);
  bool has(int neighbour) const { return neighbour >= 0 && neighbour < group_.size(); }
  PendingPtr exchange(const std::vector<Transfer>& transfers, int64_t& counter, const Stream& stream);

  Group& group_;
  ScanStrategy strategy_;
  Direction direction_ = Direction::kForward;
  Tensor entering_, leaving_;
  Advance advance_;
  PendingPtr receiving_, sending_;
  int64_t sent_bytes_ = 0, wrapped_bytes_ = 0;
  std::vector<std::string> agreed_;  // what neighbours have compared already
};

}  // namespace baton
