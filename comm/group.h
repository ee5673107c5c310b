// Group: some ranks that talk to each other, behind one interface for its transports: MPI for host tensors, NCCL for
// device tensors, in-process ranks (threads) for tests/sim.
//
// Calls are issued by one host thread, in the same order on every rank. Messages between two ranks arrive in the order
// they were sent. Tensors must stay alive until the returned Pending is waited for.
// Device tensors: a call runs after what is on `stream`, and never blocks the host; Pending::wait() makes `stream`
// wait, not the host. Where the host must know, it calls synchronize. Errors: a transport that fails or exceeds its
// deadline throws LostRank, naming both ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/stream.h"

namespace baton {

/// An operation under way. wait() may be called once; done() never blocks. The destructor does not wait.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool done() = 0;
  virtual void wait() = 0;
};
using PendingPtr = std::unique_ptr<Pending>;

/// One message of an exchange.
struct Transfer {
  enum class Kind { kSend, kRecv } kind;
  Tensor x;
  int peer;
};

/// Payload bytes that this rank has handed to the transport, point to point and in collectives.
struct Traffic {
  int64_t sent_bytes = 0;        // send
  int64_t received_bytes = 0;    // recv
  int64_t collective_bytes = 0;  // all_reduce, all_gather: x on every rank; broadcast: x on the root
};

enum class ReduceOp { kSum, kMax, kMin };

class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Point to point, to another rank of the group. A tensor of zero bytes sends nothing and is done at once.
  virtual PendingPtr send(const Tensor& x, int to, const Stream& stream) = 0;
  virtual PendingPtr recv(const Tensor& x, int from, const Stream& stream) = 0;
  /// Messages that belong together, so that none waits for another: what two ranks send each other at one time must be
  /// one exchange on both, all of the host or all of a device. Done when all are.
  virtual PendingPtr exchange(const std::vector<Transfer>& transfers, const Stream& stream);

  /// In place on every rank; float32, float64, int64. The same bits on every rank and in every run of one layout.
  /// kMax and kMin are not defined where a value is NaN.
  virtual void all_reduce(const Tensor& x, ReduceOp op, const Stream& stream) = 0;
  /// The same, so that a device can go on until the sum is waited for; on the host it is done on return.
  virtual PendingPtr begin_all_reduce(const Tensor& x, ReduceOp op, const Stream& stream);
  virtual void broadcast(const Tensor& x, int root, const Stream& stream) = 0;
  /// out [size, ...x]: x of every rank, in rank order. x may be this rank's row of out.
  virtual void all_gather(const Tensor& x, const Tensor& out, const Stream& stream) = 0;
  virtual void barrier() = 0;

  /// Waits on the host until everything given to the stream has run, and throws past the deadline or where the
  /// transport has failed meanwhile: a device that waits for a lost rank would hold the host for ever.
  virtual void synchronize(const Stream& stream);

  /// Ranks [0, n), [n, 2 n), ... are nodes. 1, the default, where nodes are not equal.
  int ranks_per_node() const { return ranks_per_node_; }
  void set_ranks_per_node(int n) {
    CHECK(n >= 1 && size() % n == 0, "{} ranks are not nodes of {}", size(), n);
    ranks_per_node_ = n;
  }

  const Traffic& traffic() const { return traffic_; }

  /// Seconds that one wait may last before it throws.
  void set_deadline(double seconds) { deadline_s_ = seconds; }
  double deadline() const { return deadline_s_; }

 protected:
  Traffic traffic_;
  double deadline_s_ = 600;
  int ranks_per_node_ = 1;
};

/// P in-process ranks, one object a thread; each must be used from its own thread. A rank whose object is destroyed has
/// left: who waits for it throws. delay_seed: other than 0, every message arrives after a random time drawn from it,
/// and a send is done only when its receive has been posted, as other transports do with long messages.
std::vector<std::unique_ptr<Group>> make_local_groups(int num_ranks, uint64_t delay_seed = 0);

/// Small host values across a group, for configuration and agreement.
double all_reduce(Group& group, double value, ReduceOp op);
int64_t all_reduce(Group& group, int64_t value, ReduceOp op);
std::string broadcast(Group& group, const std::string& text, int root);

/// Runs f on every rank and makes them agree: if any rank's f threw, every rank throws the Error of the lowest such
/// rank (its code and message; what is no baton::Error becomes one, kTransport). Defined in together.h. f must not
/// itself use the group where one rank may leave it early. A LostRank is thrown as it is, at once.
template <class F>
void together(Group& group, F&& f);

}  // namespace baton

#include "comm/together.h"
