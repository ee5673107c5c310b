// What every transport gets from the virtual calls: exchanges, small host values and agreement on errors.
#include <algorithm>
#include <utility>

#include "comm/group.h"
#include "comm/together.h"

namespace baton {
namespace {

const Stream kHost{};

template <class T>
T all_reduce_value(Group& group, T value, ReduceOp op) {
  group.all_reduce({&value, Shape{1}, dtype_of<T>(), {}}, op, kHost);
  return value;
}

class AllOf : public Pending {
 public:
  explicit AllOf(std::vector<PendingPtr> all) : all_(std::move(all)) {}
  bool done() override {
    return std::all_of(all_.begin(), all_.end(), [](const PendingPtr& p) { return p->done(); });
  }
  void wait() override {
    for (const PendingPtr& p : all_) p->wait();
  }

 private:
  std::vector<PendingPtr> all_;
};

}  // namespace

PendingPtr Group::exchange(const std::vector<Transfer>& transfers, const Stream& stream) {
  std::vector<PendingPtr> all;
  for (const Transfer& t : transfers)
    all.push_back(t.kind == Transfer::Kind::kSend ? send(t.x, t.peer, stream) : recv(t.x, t.peer, stream));
  return std::make_unique<AllOf>(std::move(all));
}

PendingPtr Group::begin_all_reduce(const Tensor& x, ReduceOp op, const Stream& stream) {
  all_reduce(x, op, stream);
  return std::make_unique<AllOf>(std::vector<PendingPtr>{});
}

void Group::synchronize(const Stream& stream) { baton::synchronize(stream); }

double all_reduce(Group& group, double value, ReduceOp op) { return all_reduce_value(group, value, op); }
int64_t all_reduce(Group& group, int64_t value, ReduceOp op) { return all_reduce_value(group, value, op); }

std::string broadcast(Group& group, const std::string& text, int root) {
  auto length = static_cast<int64_t>(text.size());
  group.broadcast({&length, Shape{1}, DType::kInt64, {}}, root, kHost);
  std::string received = group.rank() == root ? text : std::string(static_cast<size_t>(length), '\0');
  group.broadcast({received.data(), Shape{length}, DType::kUInt8, {}}, root, kHost);
  return received;
}

void throw_agreed(Group& group, const std::optional<Error>& mine) {
  const int64_t none = group.size();
  const int64_t lowest = all_reduce(group, mine ? int64_t{group.rank()} : none, ReduceOp::kMin);
  if (lowest == none) return;
  const int root = static_cast<int>(lowest);
  auto code = mine ? static_cast<int64_t>(mine->code()) : 0;
  group.broadcast({&code, Shape{1}, DType::kInt64, {}}, root, kHost);
  const std::string message = broadcast(group, mine ? mine->what() : "", root);
  Error error = group.rank() == root ? *mine : Error(static_cast<ExitCode>(code), message);
  error.set_agreed();
  throw error;
}

}  // namespace baton
