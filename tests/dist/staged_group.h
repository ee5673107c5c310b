// Runs the checks of host tensors over a transport of device tensors: each tensor is copied to the device, goes through
// the group there, and is copied back when it is waited for. What was posted before a wait goes as one exchange.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "comm/group.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"

namespace baton::checks {

class StagedGroup : public Group {
 public:
  StagedGroup(Group& group, Device device) : group_(group), device_(device), own_(device.index, false) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  PendingPtr send(const Tensor& x, int to, const Stream&) override { return post(Transfer::Kind::kSend, x, to); }
  PendingPtr recv(const Tensor& x, int from, const Stream&) override { return post(Transfer::Kind::kRecv, x, from); }

  void all_reduce(const Tensor& x, ReduceOp op, const Stream&) override {
    const Staged staged(x, device_, stream());
    counted([&] { group_.all_reduce(staged.on_device, op, stream()); });
    take_back(staged, x);
  }
  void broadcast(const Tensor& x, int root, const Stream&) override {
    const Staged staged(x, device_, stream());
    counted([&] { group_.broadcast(staged.on_device, root, stream()); });
    take_back(staged, x);
  }
  void all_gather(const Tensor& x, const Tensor& out, const Stream&) override {
    const Staged all(out, device_, stream()), one(x, device_, stream());
    const int64_t offset = static_cast<char*>(x.data) - static_cast<char*>(out.data);
    const bool in_place = offset == rank() * x.bytes();
    Tensor row = one.on_device;
    if (in_place) row.data = static_cast<char*>(all.on_device.tensor.data) + offset;
    counted([&] { group_.all_gather(row, all.on_device, stream()); });
    take_back(all, out);
  }
  void barrier() override { group_.barrier(); }

  /// Bytes sent point to point as the group itself has counted them.
  int64_t sent_by_group() const { return sent_by_group_; }

 private:
  struct Staged {
    Staged(const Tensor& x, Device device, const Stream& stream) : on_device(x.shape, x.dtype, device) {
      cuda::copy(x.data, on_device.tensor.data, x.bytes(), stream);
    }
    OwnedTensor on_device;
  };

  struct Message {
    Message(Transfer::Kind kind, const Tensor& x, int peer, Device device, const Stream& stream)
        : kind(kind), x(x), peer(peer), staged(x, device, stream) {}
    Transfer::Kind kind;
    Tensor x;
    int peer;
    Staged staged;
    std::shared_ptr<Pending> pending;  // of the exchange it went with
  };

  struct StagedPending : Pending {
    StagedPending(StagedGroup& group, std::shared_ptr<Message> message) : group(group), message(std::move(message)) {}
    bool done() override { return message->staged.on_device.tensor.bytes() == 0; }
    void wait() override { group.finish(*message); }
    StagedGroup& group;
    std::shared_ptr<Message> message;
  };

  const Stream& stream() const { return own_.stream(); }

  template <class F>
  void counted(F&& f) {
    const int64_t before = group_.traffic().collective_bytes;
    f();
    traffic_.collective_bytes += group_.traffic().collective_bytes - before;
  }

  PendingPtr post(Transfer::Kind kind, const Tensor& x, int peer) {
    auto message = std::make_shared<Message>(kind, x, peer, device_, stream());
    (kind == Transfer::Kind::kSend ? traffic_.sent_bytes : traffic_.received_bytes) += x.bytes();
    posted_.push_back(message);
    kept_.push_back(message);
    return std::make_unique<StagedPending>(*this, message);
  }

  void finish(Message& message) {
    if (!message.pending) start_posted();
    message.pending->wait();
    if (message.kind == Transfer::Kind::kRecv) take_back(message.staged, message.x);
  }

  void start_posted() {
    std::vector<Transfer> transfers;
    for (const auto& m : posted_) transfers.push_back({m->kind, m->staged.on_device, m->peer});
    const Traffic before = group_.traffic();
    const std::shared_ptr<Pending> pending = group_.exchange(transfers, stream());
    for (const auto& m : posted_) m->pending = pending;
    posted_.clear();
    sent_by_group_ += group_.traffic().sent_bytes - before.sent_bytes;
  }

  void take_back(const Staged& staged, const Tensor& x) {
    group_.set_deadline(deadline_s_);
    group_.synchronize(stream());
    cuda::copy(staged.on_device.tensor.data, x.data, x.bytes(), stream());
    cuda::synchronize(stream());
  }

  Group& group_;
  Device device_;
  cuda::OwnedStream own_;
  std::vector<std::shared_ptr<Message>> posted_;
  // A check may throw on purpose: what is released then would abort NCCL.
  std::vector<std::shared_ptr<Message>> kept_;
  int64_t sent_by_group_ = 0;
};

}  // namespace baton::checks
