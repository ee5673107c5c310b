// In-process ranks with simulated clocks: what a message takes by the model of comm/scan_cost.h, not by this machine.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "comm/scan_cost.h"

namespace baton {

/// Messages carry the time at which they were posted. Those of an exchange take a rank so long as their bytes in one
/// message, from when both ends have posted all of them; where they go one way, the last machine.early of the time from
/// when the receiver has. A sender waits for that or not.
class TimedGroup : public Group {
 public:
  /// `answers`: the same ranks again, on which receivers tell senders that wait when they were ready.
  TimedGroup(Group& ranks, Group& answers, const ScanMachine& machine)
      : ranks_(ranks), answers_(answers), machine_(machine) {
    set_ranks_per_node(static_cast<int>(machine.ranks_per_node));
  }

  double now = 0;
  int64_t num_received = 0;
  void reset() {
    now = 0, num_received = 0;
    traffic_ = {};
  }

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }

  PendingPtr exchange(const std::vector<Transfer>& transfers, const Stream& stream) override {
    auto pending = std::make_unique<Exchange>(*this);
    for (const Transfer& t : transfers)
      t.kind == Transfer::Kind::kSend ? pending->send(t, stream) : pending->recv(t, stream);
    return pending;
  }
  PendingPtr send(const Tensor& x, int to, const Stream& stream) override {
    return exchange({{Transfer::Kind::kSend, x, to}}, stream);
  }
  PendingPtr recv(const Tensor& x, int from, const Stream& stream) override {
    return exchange({{Transfer::Kind::kRecv, x, from}}, stream);
  }
  void all_gather(const Tensor& x, const Tensor& out, const Stream& stream) override {
    traffic_.collective_bytes += x.bytes();
    ranks_.all_gather(x, out, stream);
    now = baton::all_reduce(ranks_, now, ReduceOp::kMax) + (size() - 1) * machine_.inside.seconds(x.bytes());
  }
  void all_reduce(const Tensor&, ReduceOp, const Stream&) override { CHECK(false, "a scan reduces nothing"); }
  void broadcast(const Tensor&, int, const Stream&) override { CHECK(false, "a scan broadcasts nothing"); }
  void barrier() override { ranks_.barrier(); }

 private:
  struct Exchange : Pending {
    explicit Exchange(TimedGroup& group) : group(group), mine(group.now) {}
    void send(const Transfer& t, const Stream& stream) {
      group.traffic_.sent_bytes += t.x.bytes(), sent_bytes += t.x.bytes();
      group.ranks_.send(t.x, t.peer, stream)->wait();  // in-process sends are done at once
      group.ranks_.send(clock(mine), t.peer, stream)->wait();
      if (group.machine_.sends_wait) parts.push_back(group.answers_.recv(clock(theirs.emplace_back()), t.peer, stream));
    }
    void recv(const Transfer& t, const Stream& stream) {
      group.traffic_.received_bytes += t.x.bytes(), received_bytes += t.x.bytes();
      ++group.num_received;
      if (group.machine_.sends_wait) group.answers_.send(clock(mine), t.peer, stream)->wait();
      parts.push_back(group.ranks_.recv(t.x, t.peer, stream));
      parts.push_back(group.ranks_.recv(clock(theirs.emplace_back()), t.peer, stream));
    }
    static Tensor clock(double& time) { return {&time, Shape{1}, DType::kFloat64, {}}; }
    bool done() override { return false; }
    void wait() override {
      for (const PendingPtr& part : parts) part->wait();
      if (theirs.empty()) return;
      const ScanMachine& m = group.machine_;
      const int64_t bytes = std::max(sent_bytes, received_bytes);
      const double last = *std::ranges::max_element(theirs);
      const bool one_way = sent_bytes == 0 || received_bytes == 0;
      const double sent = sent_bytes > 0 ? mine : last, awaited = sent_bytes > 0 ? last : mine;
      const double end = one_way ? std::max(sent + m.inside.seconds(bytes), awaited + m.inside.seconds(bytes, m.early))
                                 : std::max(last, mine) + m.inside.seconds(bytes, m.both_ways);
      group.now = std::max(group.now, end);
    }
    TimedGroup& group;
    int64_t sent_bytes = 0, received_bytes = 0;
    double mine;                // when this rank posted it
    std::deque<double> theirs;  // and those that it waits for
    std::vector<PendingPtr> parts;
  };

  Group &ranks_, &answers_;
  ScanMachine machine_;
};

}  // namespace baton
