// In-process ranks: threads that copy messages through mailboxes. The transport of tests/sim.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/group.h"
#include "runtime/rng.h"

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

// Collectives have mailboxes of their own, so that they never take a message sent point to point.
enum Channel { kDirect, kCollective };

struct Message {
  std::vector<char> bytes;
  Clock::time_point ready;
};

/// The messages from one rank to another on one channel, by number, in the order they were sent.
struct Lane {
  std::map<int64_t, Message> messages;
  int64_t num_posted = 0, num_expected = 0;  // sends and receives so far
  std::condition_variable changed;
};

struct Inbox {
  std::mutex mutex;
  std::map<int, Lane> lanes;  // by channel and sender
};

/// What the ranks of one group share.
class Exchange {
 public:
  Exchange(int num_ranks, uint64_t delay_seed)
      : num_ranks_(num_ranks), delay_seed_(delay_seed), inboxes_(num_ranks), has_left_(num_ranks) {}

  int num_ranks() const { return num_ranks_; }
  /// Whether a send is done only when its receive has been posted, as transports do with long messages.
  bool sends_wait() const { return delay_seed_ != 0; }

  int64_t post(Channel channel, int from, int to, const Tensor& x) {
    const auto* data = static_cast<const char*>(x.data);
    Message message{{data, data + x.bytes()}, Clock::now()};
    const std::lock_guard lock(inboxes_[to].mutex);
    Lane& lane = lane_of(channel, from, to);
    message.ready += delay((channel * num_ranks_ + from) * num_ranks_ + to, lane.num_posted);
    lane.messages[lane.num_posted] = std::move(message);
    lane.changed.notify_all();
    return lane.num_posted++;
  }

  /// Returns the number of the message that this receive will take.
  int64_t expect(Channel channel, int from, int to) {
    const std::lock_guard lock(inboxes_[to].mutex);
    Lane& lane = lane_of(channel, from, to);
    lane.changed.notify_all();
    return lane.num_expected++;
  }

  bool is_ready(Channel channel, int from, int to, int64_t number) {
    const std::lock_guard lock(inboxes_[to].mutex);
    const auto& messages = lane_of(channel, from, to).messages;
    const auto found = messages.find(number);
    return found != messages.end() && found->second.ready <= Clock::now();
  }

  bool is_expected(Channel channel, int from, int to, int64_t number) {
    const std::lock_guard lock(inboxes_[to].mutex);
    return lane_of(channel, from, to).num_expected > number;
  }

  /// Waits for message `number` of this lane and copies it to x.
  void take(Channel channel, int from, int to, int64_t number, const Tensor& x, double deadline_s) {
    std::unique_lock lock(inboxes_[to].mutex);
    Lane& lane = lane_of(channel, from, to);
    const std::string phrase = fmt::format("rank {} receives {} bytes from rank {}", to, x.bytes(), from);
    wait(lock, lane, from, deadline_s, phrase, [&] { return lane.messages.contains(number); });
    const Message message = std::move(lane.messages.extract(number).mapped());
    lock.unlock();
    std::this_thread::sleep_until(message.ready);
    const auto bytes = static_cast<int64_t>(message.bytes.size());
    CHECK(bytes == x.bytes(), "{}: {} bytes came", phrase, bytes);
    if (bytes > 0) std::memcpy(x.data, message.bytes.data(), message.bytes.size());
  }

  void wait_until_expected(Channel channel, int from, int to, int64_t number, double deadline_s) {
    std::unique_lock lock(inboxes_[to].mutex);
    Lane& lane = lane_of(channel, from, to);
    const std::string phrase = fmt::format("rank {} sends to rank {}", from, to);
    wait(lock, lane, to, deadline_s, phrase, [&] { return lane.num_expected > number; });
  }

  void leave(int rank) {
    has_left_[rank] = true;
    for (int other = 0; other < num_ranks_; ++other)
      for (const Channel channel : {kDirect, kCollective}) {
        wake(channel, rank, other);
        wake(channel, other, rank);
      }
  }

 private:
  Lane& lane_of(Channel channel, int from, int to) { return inboxes_[to].lanes[channel * num_ranks_ + from]; }

  void wake(Channel channel, int from, int to) {
    const std::lock_guard lock(inboxes_[to].mutex);
    const auto found = inboxes_[to].lanes.find(channel * num_ranks_ + from);
    if (found != inboxes_[to].lanes.end()) found->second.changed.notify_all();
  }

  /// Until `holds`; throws where `other` has left or the deadline has passed before.
  void wait(std::unique_lock<std::mutex>& lock, Lane& lane, int other, double deadline_s, const std::string& phrase,
            const std::function<bool()>& holds) {
    lane.changed.wait_for(lock, std::chrono::duration<double>(deadline_s), [&] { return holds() || has_left_[other]; });
    CHECK(holds(), "{}: {}", phrase,
          has_left_[other] ? std::string("that rank has left") : fmt::format("nothing within {} s", deadline_s));
  }

  /// Mostly under 0.2 ms, one in sixteen 2 ms, so that later messages overtake earlier ones.
  Clock::duration delay(int lane, int64_t number) const {
    if (delay_seed_ == 0) return {};
    const uint64_t bits = random_bits(delay_seed_, static_cast<uint64_t>(lane), static_cast<uint64_t>(number));
    return std::chrono::microseconds(bits % 16 == 0 ? 2000 : (bits >> 8) % 200);
  }

  int num_ranks_;
  uint64_t delay_seed_;
  std::vector<Inbox> inboxes_;
  std::vector<std::atomic<bool>> has_left_;
};

struct Sent : Pending {
  bool done() override { return true; }
  void wait() override {}
};

/// A send that is done when its receive has been posted.
class Sending : public Pending {
 public:
  Sending(Exchange& exchange, int from, int to, int64_t number, double deadline_s)
      : exchange_(exchange), from_(from), to_(to), number_(number), deadline_s_(deadline_s) {}

  bool done() override { return exchange_.is_expected(kDirect, from_, to_, number_); }
  void wait() override { exchange_.wait_until_expected(kDirect, from_, to_, number_, deadline_s_); }

 private:
  Exchange& exchange_;
  int from_, to_;
  int64_t number_;
  double deadline_s_;
};

class Receiving : public Pending {
 public:
  Receiving(Exchange& exchange, int from, int to, int64_t number, const Tensor& x, double deadline_s)
      : exchange_(exchange), from_(from), to_(to), number_(number), x_(x), deadline_s_(deadline_s) {}

  bool done() override {
    if (!taken_ && exchange_.is_ready(kDirect, from_, to_, number_)) wait();
    return taken_;
  }
  void wait() override {
    if (taken_) return;
    exchange_.take(kDirect, from_, to_, number_, x_, deadline_s_);
    taken_ = true;
  }

 private:
  Exchange& exchange_;
  int from_, to_;
  int64_t number_;
  Tensor x_;
  double deadline_s_;
  bool taken_ = false;
};

template <class T>
void combine(const Tensor& into, const Tensor& other, ReduceOp op) {
  T* a = into.as<T>();
  const T* b = other.as<T>();
  for (int64_t i = 0; i < into.numel(); ++i) {
    if (op == ReduceOp::kSum) a[i] += b[i];
    if (op == ReduceOp::kMax) a[i] = std::max(a[i], b[i]);
    if (op == ReduceOp::kMin) a[i] = std::min(a[i], b[i]);
  }
}

class LocalGroup final : public Group {
 public:
  LocalGroup(std::shared_ptr<Exchange> exchange, int rank) : exchange_(std::move(exchange)), rank_(rank) {}
  ~LocalGroup() override { exchange_->leave(rank_); }
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return exchange_->num_ranks(); }

  PendingPtr send(const Tensor& x, int to, const Stream&) override {
    check(x, to);
    traffic_.sent_bytes += x.bytes();
    if (x.bytes() == 0) return std::make_unique<Sent>();
    const int64_t number = exchange_->post(kDirect, rank_, to, x);
    if (!exchange_->sends_wait()) return std::make_unique<Sent>();
    return std::make_unique<Sending>(*exchange_, rank_, to, number, deadline_s_);
  }

  PendingPtr recv(const Tensor& x, int from, const Stream&) override {
    check(x, from);
    traffic_.received_bytes += x.bytes();
    if (x.bytes() == 0) return std::make_unique<Sent>();
    const int64_t number = exchange_->expect(kDirect, from, rank_);
    return std::make_unique<Receiving>(*exchange_, from, rank_, number, x, deadline_s_);
  }

  /// Rank 0 adds in rank order and hands the result back.
  void all_reduce(const Tensor& x, ReduceOp op, const Stream&) override {
    CHECK(x.dtype == DType::kFloat32 || x.dtype == DType::kFloat64 || x.dtype == DType::kInt64,
          "all_reduce takes float32, float64 or int64, not {}", to_string(x.dtype));
    traffic_.collective_bytes += x.bytes();
    reduce(x, op);
    distribute(x, 0);
  }

  void broadcast(const Tensor& x, int root, const Stream&) override {
    CHECK(root >= 0 && root < size(), "a broadcast from rank {} in a group of {}", root, size());
    if (rank_ == root) traffic_.collective_bytes += x.bytes();
    distribute(x, root);
  }

  void all_gather(const Tensor& x, const Tensor& out, const Stream&) override {
    CHECK(out.numel() == size() * x.numel() && out.dtype == x.dtype, "all_gather of {} over {} ranks into {}",
          x.shape.str(), size(), out.shape.str());
    traffic_.collective_bytes += x.bytes();
    const auto row = [&](int r) {
      return Tensor{static_cast<char*>(out.data) + r * x.bytes(), x.shape, x.dtype, x.device};
    };
    if (x.bytes() > 0) std::memmove(row(rank_).data, x.data, static_cast<size_t>(x.bytes()));
    for (int r = 0; r < size(); ++r) distribute(row(r), r);
  }

  void barrier() override {
    int64_t nothing = 0;
    const Tensor x{&nothing, Shape{1}, DType::kInt64, {}};
    reduce(x, ReduceOp::kMax);
    distribute(x, 0);
  }

 private:
  void check(const Tensor& x, int peer) const {
    CHECK(x.device.type == DeviceType::kCpu, "in-process ranks take host tensors, not one of a device");
    CHECK(peer >= 0 && peer < size() && peer != rank_, "rank {} of {} has no other rank {}", rank_, size(), peer);
  }

  void take(const Tensor& x, int from) {
    exchange_->take(kCollective, from, rank_, exchange_->expect(kCollective, from, rank_), x, deadline_s_);
  }

  void reduce(const Tensor& x, ReduceOp op) {
    if (rank_ != 0) return static_cast<void>(exchange_->post(kCollective, rank_, 0, x));
    std::vector<double> scratch(static_cast<size_t>((x.bytes() + 7) / 8));
    const Tensor other{scratch.data(), x.shape, x.dtype, {}};
    for (int r = 1; r < size(); ++r) {
      take(other, r);
      if (x.dtype == DType::kFloat32) combine<float>(x, other, op);
      if (x.dtype == DType::kFloat64) combine<double>(x, other, op);
      if (x.dtype == DType::kInt64) combine<int64_t>(x, other, op);
    }
  }

  void distribute(const Tensor& x, int root) {
    if (rank_ != root) return take(x, root);
    for (int r = 0; r < size(); ++r)
      if (r != root) exchange_->post(kCollective, root, r, x);
  }

  std::shared_ptr<Exchange> exchange_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> make_local_groups(int num_ranks, uint64_t delay_seed) {
  CHECK(num_ranks >= 1, "a group has at least one rank, not {}", num_ranks);
  auto exchange = std::make_shared<Exchange>(num_ranks, delay_seed);
  std::vector<std::unique_ptr<Group>> groups;
  for (int r = 0; r < num_ranks; ++r) groups.push_back(std::make_unique<LocalGroup>(exchange, r));
  return groups;
}

}  // namespace baton
