// Device tensors over a transport of host tensors: in-process ranks that share a device.
#pragma once

#include <memory>

#include "comm/group.h"
#include "runtime/memory.h"

namespace baton::test {

class SharedDeviceGroup : public Group {
 public:
  explicit SharedDeviceGroup(Group& ranks) : ranks_(ranks) { set_ranks_per_node(ranks.ranks_per_node()); }

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }

  PendingPtr send(const Tensor& x, int to, const Stream& stream) override {
    auto message = std::make_unique<Message>(x, false, stream);
    message->pending = ranks_.send(message->host, to, Stream{});
    return counted(std::move(message));
  }
  PendingPtr recv(const Tensor& x, int from, const Stream& stream) override {
    auto message = std::make_unique<Message>(x, true, stream);
    message->pending = ranks_.recv(message->host, from, Stream{});
    return counted(std::move(message));
  }
  void all_gather(const Tensor& x, const Tensor& out, const Stream& stream) override {
    const Message mine(x, false, stream), all(out, false, stream);
    ranks_.all_gather(mine.host, all.host, Stream{});
    all.take();
    counted(nullptr);
  }
  void all_reduce(const Tensor& x, ReduceOp op, const Stream& stream) override {
    const Message all(x, false, stream);
    ranks_.all_reduce(all.host, op, Stream{});
    all.take();
    counted(nullptr);
  }
  void broadcast(const Tensor& x, int root, const Stream& stream) override {
    const Message all(x, false, stream);
    ranks_.broadcast(all.host, root, Stream{});
    all.take();
    counted(nullptr);
  }
  void barrier() override { ranks_.barrier(); }

 private:
  struct Message : Pending {
    Message(const Tensor& x, bool receives, const Stream& stream)
        : x(x), host(x.shape, x.dtype), receives(receives), stream(stream) {
      if (receives) return;
      copy(x, host, stream);
      baton::synchronize(stream);
    }
    bool done() override { return false; }
    void wait() override {
      pending->wait();
      if (receives) take();
    }
    void take() const {
      copy(host, x, stream);
      baton::synchronize(stream);
    }
    Tensor x;
    OwnedTensor host;
    bool receives;
    Stream stream;
    PendingPtr pending;
  };

  PendingPtr counted(PendingPtr pending) {
    traffic_ = ranks_.traffic();
    return pending;
  }

  Group& ranks_;
};

}  // namespace baton::test
