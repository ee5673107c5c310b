#include "tests/comm_checks.h"

#include <algorithm>

#include "comm/together.h"
#include "tests/check_tools.h"

namespace baton::checks {
namespace {

std::string name(int rank) { return "rank " + std::to_string(rank); }

template <class T>
void all_reduce_of(Group& group, int64_t n) {
  const auto P = static_cast<int64_t>(group.size());
  const auto value = [&](int64_t rank, int64_t i) { return static_cast<T>((rank * 31 + i * 7) % 127 - 60); };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    OwnedTensor x({n}, dtype_of<T>());
    for (int64_t i = 0; i < n; ++i) x.tensor.as<T>()[i] = value(group.rank(), i);
    group.all_reduce(x, op, kHost);
    for (int64_t i = 0; i < n; ++i) {
      T expected = value(0, i);
      for (int64_t r = 1; r < P; ++r) {
        if (op == ReduceOp::kSum) expected += value(r, i);
        if (op == ReduceOp::kMax) expected = std::max(expected, value(r, i));
        if (op == ReduceOp::kMin) expected = std::min(expected, value(r, i));
      }
      EXPECT(x.tensor.as<T>()[i] == expected, "all_reduce, element {} of {}: {} is not {}", i, n, x.tensor.as<T>()[i],
             expected);
    }
  }
}

template <class T>
void random_sum_has_one_result(Group& group, int64_t n) {
  OwnedTensor x({n}, dtype_of<T>()), again({n}, dtype_of<T>()), all({group.size(), n}, dtype_of<T>());
  fill_normal<T>(x, 1, group.rank());
  copy(x, again, kHost);
  group.all_reduce(x, ReduceOp::kSum, kHost);
  group.all_reduce(again, ReduceOp::kSum, kHost);
  EXPECT(same_bits(x, again), "two all_reduce of {} equal values differ", n);
  group.all_gather(x, all, kHost);
  for (int r = 0; r < group.size(); ++r)
    EXPECT(same_bits(x, all.tensor.rows(r, 1)), "the sum of {} values on rank {} is not that of rank {}", n, r,
           group.rank());
}

}  // namespace

void all_reduce_is_exact(Group& group) {
  for (const int64_t n : {1, 5, 1000, 70001}) {
    all_reduce_of<float>(group, n);
    all_reduce_of<double>(group, n);
    all_reduce_of<int64_t>(group, n);
    random_sum_has_one_result<float>(group, n);
    random_sum_has_one_result<double>(group, n);
  }
  const int64_t big = int64_t{1} << 60;
  EXPECT(all_reduce(group, big + group.rank(), ReduceOp::kMax) == big + group.size() - 1, "int64 went through a float");
  EXPECT(all_reduce(group, 0.5, ReduceOp::kSum) == 0.5 * group.size(), "the sum of a double is wrong");
  const int64_t before = group.traffic().collective_bytes;
  all_reduce(group, 1.0, ReduceOp::kSum);
  EXPECT(group.traffic().collective_bytes - before == 8, "an all_reduce of 8 bytes was counted as {}",
         group.traffic().collective_bytes - before);
}

void broadcast_and_gather(Group& group) {
  const int P = group.size();
  for (int root = 0; root < P; ++root) {
    OwnedTensor x({3, 7}, DType::kFloat32), expected({3, 7}, DType::kFloat32);
    fill_normal<float>(expected, 5, root);
    if (group.rank() == root) copy(expected, x, kHost);
    group.broadcast(x, root, kHost);
    EXPECT(same_bits(x, expected), "the broadcast from rank {} arrived wrong", root);
    const std::string text = "from " + std::to_string(root);
    EXPECT(broadcast(group, group.rank() == root ? text : "something longer than that", root) == text,
           "a text arrived wrong");
    EXPECT(broadcast(group, group.rank() == root ? "" : "not empty", root).empty(), "an empty text arrived wrong");
  }
  for (const bool in_place : {false, true}) {
    OwnedTensor x({3, 7}, DType::kFloat32), all({P, 3, 7}, DType::kFloat32), expected({3, 7}, DType::kFloat32);
    const Tensor row = in_place ? all.tensor.rows(group.rank(), 1).view({3, 7}) : x.tensor;
    fill_normal<float>(row, 6, group.rank());
    group.all_gather(row, all, kHost);
    for (int r = 0; r < P; ++r) {
      fill_normal<float>(expected, 6, r);
      EXPECT(same_bits(all.tensor.rows(r, 1), expected), "row {} of the gathered tensor is wrong", r);
    }
  }
  group.barrier();
}

void order_is_kept(Group& group, uint64_t seed) {
  constexpr int kMessages = 12;
  struct Message {
    OwnedTensor x;
    PendingPtr pending;
    int from = 0, number = 0;
  };
  const auto make = [&](int from, int to, int number) {
    const auto bits = random_bits(seed, from * 1000 + to, number);
    OwnedTensor x({1 + static_cast<int64_t>(bits % (number % 5 == 0 ? 50000 : 50))}, DType::kInt64);
    for (int64_t i = 0; i < x.tensor.numel(); ++i)
      x.tensor.as<int64_t>()[i] = from * 1000000 + to * 10000 + number * 100 + i % 100;
    return x;
  };
  std::vector<Message> sent, received;
  for (int number = 0; number < kMessages; ++number)
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      sent.push_back({make(group.rank(), peer, number), nullptr, peer, number});
      sent.back().pending = group.send(sent.back().x, peer, kHost);
      OwnedTensor x(make(peer, group.rank(), number).tensor.shape, DType::kInt64);
      received.push_back({std::move(x), nullptr, peer, number});
      received.back().pending = group.recv(received.back().x, peer, kHost);
    }
  for (auto it = received.rbegin(); it != received.rend(); ++it) {
    it->pending->wait();
    EXPECT(same_bits(it->x, make(it->from, group.rank(), it->number)), "message {} from rank {} is wrong", it->number,
           it->from);
  }
  for (Message& message : sent) message.pending->wait();
}

void zero_bytes_send_nothing(Group& group) {
  const Traffic before = group.traffic();
  const OwnedTensor empty({0, 4}, DType::kFloat32), all({group.size(), 0, 4}, DType::kFloat32);
  const int P = group.size();
  if (P > 1) {
    // No rank receives what the next one sends, so a message would be noticed by whoever comes after.
    EXPECT(group.send(empty, (group.rank() + 1) % P, kHost)->done(), "sending nothing is not done at once");
    EXPECT(group.recv(empty, (group.rank() + P - 1) % P, kHost)->done(), "receiving nothing is not done at once");
  }
  group.all_reduce(empty, ReduceOp::kSum, kHost);
  group.broadcast(empty, 0, kHost);
  group.all_gather(empty, all, kHost);
  EXPECT(group.traffic().sent_bytes == before.sent_bytes && group.traffic().received_bytes == before.received_bytes &&
             group.traffic().collective_bytes == before.collective_bytes,
         "nothing was counted as something");
  order_is_kept(group, 7);
}

void large_messages(Group& group, int64_t bytes) {
  const int last = group.size() - 1;
  const auto byte_at = [](int64_t i) { return static_cast<uint8_t>(i * 131 >> 7); };
  if (last > 0 && (group.rank() == 0 || group.rank() == last)) {
    OwnedTensor x({bytes}, DType::kUInt8);
    auto* data = x.tensor.as<uint8_t>();
    if (group.rank() == 0) {
      for (int64_t i = 0; i < bytes; ++i) data[i] = byte_at(i);
      group.send(x, last, kHost)->wait();
    } else {
      group.recv(x, 0, kHost)->wait();
      for (int64_t i = 0; i < bytes; ++i) EXPECT(data[i] == byte_at(i), "byte {} of {} arrived wrong", i, bytes);
    }
  }
  const int64_t n = bytes / 4;
  OwnedTensor x({n}, DType::kFloat32), all({group.size(), n}, DType::kFloat32);
  for (int64_t i = 0; i < n; ++i) x.tensor.as<float>()[i] = static_cast<float>(i % 1021 + group.rank());
  group.all_gather(x, all, kHost);
  group.broadcast(x, last, kHost);
  EXPECT(same_bits(x, all.tensor.rows(last, 1)), "a large broadcast and a large all_gather differ");
  for (int r = 0; r < group.size(); ++r) {
    const float* row = all.tensor.rows(r, 1).as<float>();
    for (int64_t i = 0; i < n; ++i)
      EXPECT(row[i] == static_cast<float>(i % 1021 + r), "element {} of row {} is wrong", i, r);
  }
  group.all_reduce(x, ReduceOp::kSum, kHost);
  const auto* sum = x.tensor.as<float>();
  for (int64_t i = 0; i < n; ++i)
    EXPECT(sum[i] == static_cast<float>((i % 1021 + last) * group.size()), "sum {} of {} is wrong", i, n);
}

void together_agrees(Group& group) {
  const int P = group.size();
  together(group, [] {});
  for (int lowest = 0; lowest < P; ++lowest) {
    std::optional<Error> thrown;
    try {
      together(group, [&] {
        if (group.rank() >= lowest) throw Error(ExitCode::kInput, fmt::format("rank {} is at fault", group.rank()));
      });
    } catch (const Error& e) {
      thrown = e;
    }
    EXPECT(thrown.has_value(), "rank {} did not learn of the error of rank {}", group.rank(), lowest);
    EXPECT(thrown->what() == fmt::format("rank {} is at fault", lowest), "got the words '{}'", thrown->what());
    EXPECT(thrown->code() == ExitCode::kInput, "the code was lost");
  }
  bool thrown = false;
  try {
    together(group, [&] {
      if (group.rank() == P - 1) throw std::runtime_error("of another kind");
    });
  } catch (const Error& e) {
    thrown = e.what() == std::string("of another kind") && e.code() == ExitCode::kTransport;
  }
  EXPECT(thrown, "an exception of another kind was lost");
  std::string words;
  try {
    together(group, [&] { throw LostRank(fmt::format("rank {} waited", group.rank())); });
  } catch (const LostRank& e) {
    words = e.what();
  }
  EXPECT(words == fmt::format("rank {} waited", group.rank()), "a lost rank was waited for: '{}'", words);
}

void expect_refusal(const std::function<void()>& f, const std::vector<std::string>& words) {
  std::optional<Error> thrown;
  try {
    f();
  } catch (const Error& e) {
    thrown = e;
  }
  EXPECT(thrown.has_value(), "nothing was thrown where '{}' was expected", words.front());
  EXPECT(thrown->code() == ExitCode::kTransport, "the code is {}", static_cast<int>(thrown->code()));
  for (const std::string& word : words)
    EXPECT(std::string(thrown->what()).find(word) != std::string::npos, "'{}' does not say '{}'", thrown->what(), word);
}

void a_wait_ends_at_its_deadline(Group& pair, int first_rank) {
  static OwnedTensor never({100}, DType::kFloat32);  // outlives the receive that stays open
  pair.set_deadline(0.2);
  if (pair.rank() == 0)
    expect_refusal([&] { pair.recv(never, 1, kHost)->wait(); },
                   {name(first_rank), name(first_rank + 1), "400 bytes", "0.2 s"});
}

void a_message_of_another_size_is_refused(Group& pair, int first_rank) {
  for (const int64_t n : {50, 200}) {
    OwnedTensor sent({100}, DType::kFloat32), received({n}, DType::kFloat32);
    if (pair.rank() == 0) pair.send(sent, 1, kHost)->wait();
    if (pair.rank() == 1)
      expect_refusal([&] { pair.recv(received, 0, kHost)->wait(); },
                     {name(first_rank), name(first_rank + 1), std::to_string(4 * n) + " bytes"});
  }
}

}  // namespace baton::checks
