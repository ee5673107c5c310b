// state_scan: the exclusive scan of carries over an sp_group. Rank r receives the state that enters its shard, applies
// its own carry, and hands what leaves on to rank r + 1 (forward) or r - 1 (reversed, for the state's gradient).
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/topology.h"

namespace baton {

enum class Direction { kForward, kReversed };

/// chain: point to point, the default and the reference. doubling: ceil(log2 P) rounds, in round i carries of 2^i ranks
/// go 2^i ranks on. all_gather: every rank gets all carries and composes those before it. hierarchical: each rank of a
/// node (Group::ranks_per_node) takes a slice of its ranks' carries, doubling across nodes on slices; doubling where a
/// node has one rank.
enum class ScanStrategy { kChain, kDoubling, kAllGather, kHierarchical };
inline constexpr std::array kScanStrategies{ScanStrategy::kChain, ScanStrategy::kDoubling, ScanStrategy::kAllGather,
                                            ScanStrategy::kHierarchical};

const char* to_string(ScanStrategy strategy);
/// Throws an input error that names the key on another word.
ScanStrategy parse_scan_strategy(const std::string& key, const std::string& word);

/// What neighbouring ranks' shards together do to the state that enters them, as it is sent: a tensor [numel], the
/// state first, then what else the ranks must tell each other.
struct Stretch {
  Tensor carry;
  Range ranks;
  Range rows = {};  // of the carry, as ShardCarry has them; empty: all
};

/// What one rank's shard does to the state. Passed in, since comm knows no attention. Of a chain `advance` alone,
/// unless the shard forgets.
struct ShardCarry {
  /// Reads `entering`, fills `leaving`.
  std::function<void(const Tensor& entering, const Tensor& leaving)> advance = {};
  int64_t numel = 0;
  /// The carry is parts [rows, widths[i]], one after another, the state first; no row's carry needs another's.
  int64_t rows = 0;
  std::array<int64_t, 3> widths = {};
  /// Writes the shard's own carry; called before advance.
  std::function<void(const Tensor& carry)> own = {};
  /// Writes the carry of two neighbouring stretches, of which the state crosses `first` first. out may be either's.
  std::function<void(const Stretch& first, const Stretch& second, const Tensor& out)> compose = {};
  /// The host knows that nothing which enters reaches what leaves, or takes it for nothing: a chain sends the state of
  /// `own`, which in the first case has the bits of advance's, before it receives. Not to be set under a graph capture,
  /// which would keep it.
  bool forgets = false;
};

/// One scan at a time, reused for all layers. begin and finish are apart so that independent work can run between.
class StateScan {
 public:
  /// scratch: [scratch_numel] for the largest carry, on the states' device and of their dtype; a chain needs it only
  /// where shards forget.
  StateScan(Group& group, ScanStrategy strategy, const Tensor& scratch = {})
      : group_(group), strategy_(on_nodes(strategy, group)), scratch_(scratch) {}
  /// rows: as ShardCarry's, which hierarchical slices.
  static int64_t scratch_numel(ScanStrategy strategy, const Group& group, int64_t carry_numel, int64_t rows);
  int num_ranks() const { return group_.size(); }
  static int doubling_rounds(int num_ranks);

  /// entering, leaving: the state [B, H, K, V] or its gradient, owned by the caller until finish returns. On the first
  /// rank (the last, reversed) `entering` is an input: what the whole stretch starts from; elsewhere it is received.
  /// The first rank advances here, and every rank sends here what it can without a message. Neighbours compare shape
  /// and dtype before the first transfer of each shape and direction, and both throw where they differ.
  void begin(Direction direction, const Tensor& entering, const Tensor& leaving, ShardCarry shard,
             const Stream& stream);

  /// Waits for the state, advances, sends what is left to send. Afterwards `entering` and `leaving` hold their values.
  /// On a device all this is in stream order, nothing blocks the host, and `leaving` must not be written before the
  /// next begin, wrap or settle, since its send may still be reading it: the stream does not wait for the next rank to
  /// have taken it.
  void finish(const Stream& stream);

  /// Orders the stream after every send so far; needed before the end of a graph capture.
  void settle();

  /// Between windows and steps: the last rank's leaving states become the first rank's entering states of the next
  /// window (reversed: the first rank's become the last's), one tensor a layer; a copy on a group of one. Collective;
  /// the other ranks' tensors are not looked at. Not while a scan is under way.
  void wrap(Direction direction, const std::vector<Tensor>& leaving, const std::vector<Tensor>& entering,
            const Stream& stream);

  /// Bytes that this rank has sent in wrap so far.
  int64_t wrapped_bytes() const { return wrapped_bytes_; }

  /// Bytes that this rank has given to the transport in scans so far. A call: chain, the state where a next rank
  /// exists; doubling, a carry for each distance 1, 2, 4, ... at which a rank follows; all_gather, a carry;
  /// hierarchical, the others' slices of its carry, its slice of a carry for each distance at which a node follows, and
  /// its slice of a state to the others of the node, but not to the first rank of all.
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  // Carries that doubling keeps: its own; that of those behind, as far as it is known; what came in this round; and
  // what goes out.
  enum Place { kOwn, kBehind, kIncoming, kOutgoing, kNumPlaces };
  static ScanStrategy on_nodes(ScanStrategy strategy, const Group& group);
  int ahead(int distance) const { return group_.rank() + (direction_ == Direction::kForward ? distance : -distance); }
  int behind(int distance) const { return ahead(-distance); }
  Range ranks_behind(int nearest, int farthest) const;
  Tensor carry_at(int place) const { return scratch_.rows(place * place_numel_, place_numel_); }
  Tensor state_of(const Tensor& carry) const { return carry.rows(0, entering_.numel()).view(entering_.shape); }
  void send_on(const Tensor& state, const Stream& stream);
  /// The carry of a node's ranks up to its q-th, in the scan's order.
  Tensor node_carry(int q) const { return carry_at(q == unit_ - 1 ? kOwn : kNumPlaces + q); }
  Range node_ranks(int first, int last) const;
  void write_own(const Tensor& carry, const Stream& stream);
  void start_round(const Stream& stream);
  Tensor finish_rounds(const Stream& stream);
  Tensor gather(const Stream& stream);
  void begin_in_node(const Stream& stream);
  void finish_in_node(const Stream& stream);
  void hand_back(const Stream& stream);
  void check_neighbours(const Tensor& state);
  bool has(int neighbour) const { return neighbour >= 0 && neighbour < group_.size(); }
  PendingPtr exchange(const std::vector<Transfer>& transfers, int64_t& counter, const Stream& stream);

  Group& group_;
  ScanStrategy strategy_;
  Tensor scratch_;
  Direction direction_ = Direction::kForward;
  Tensor entering_, leaving_;
  ShardCarry shard_;
  int64_t place_numel_ = 0;  // of each carry in scratch: a shard's, or the slice `rows_` of one
  Range rows_;
  int unit_ = 1;      // ranks that are one to doubling: of a node
  int distance_ = 1;  // of this round of doubling, in units
  Tensor outgoing_;   // and what it sends
  PendingPtr receiving_;
  std::vector<PendingPtr> sending_;
  int64_t sent_bytes_ = 0, wrapped_bytes_ = 0;
  std::vector<std::string> agreed_;  // what neighbours have compared already
};

}  // namespace baton
