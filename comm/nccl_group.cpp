#include <type_traits>
#include <utility>

#include "comm/mpi_group.h"
#include "comm/nccl_communicator.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"

namespace baton {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kBFloat16:
      return ncclBfloat16;
    case DType::kInt32:
      return ncclInt32;
    case DType::kInt64:
      return ncclInt64;
    case DType::kUInt8:
      return ncclUint8;
  }
  CHECK(false, "NCCL has no type for {}", to_string(dtype));
}

ncclRedOp_t nccl_op(ReduceOp op) { return op == ReduceOp::kSum ? ncclSum : op == ReduceOp::kMax ? ncclMax : ncclMin; }

cudaStream_t handle_of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }

bool on_host(const Tensor& x) { return x.device.type == DeviceType::kCpu; }

/// The world_rank of this process, in messages; 0 where there is no MPI.
int64_t find_world_rank() {
  int initialized = 0, rank = 0;
  MPI_CHECK(MPI_Initialized(&initialized));
  if (initialized != 0) MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  return rank;
}

class Done : public Pending {
 public:
  bool done() override { return true; }
  void wait() override {}
};

class NcclPending : public Pending {
 public:
  NcclPending(std::shared_ptr<Operation> operation, Stream stream)
      : operation_(std::move(operation)), stream_(stream) {}

  bool done() override {
    Communicator::check_all();
    return operation_->over.done();
  }
  void wait() override { operation_->over.wait_on(stream_); }

 private:
  std::shared_ptr<Operation> operation_;
  Stream stream_;
};

class NcclGroup : public Group {
 public:
  NcclGroup(std::unique_ptr<Group> host, Device device, const NcclOptions& options)
      : host_(std::move(host)), device_(device), name_(options.name), own_(device.index, options.high_priority) {
    deadline_s_ = host_->deadline();
    OwnedTensor mine({1}, DType::kInt64), all({size()}, DType::kInt64);
    *mine.tensor.as<int64_t>() = find_world_rank();
    host_->all_gather(mine, all, Stream{});
    world_ranks_.assign(all.tensor.as<int64_t>(), all.tensor.as<int64_t>() + size());
    count();
    if (size() == 1) return;
    communicator_ = std::make_unique<Communicator>(*host_, options, who(), deadline_s_);
    connect();
    device_traffic_ = {};
    count();
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  PendingPtr send(const Tensor& x, int to, const Stream& stream) override {
    if (on_host(x)) return through_host([&] { return host_->send(x, to, stream); });
    return exchange({{Transfer::Kind::kSend, x, to}}, stream);
  }

  PendingPtr recv(const Tensor& x, int from, const Stream& stream) override {
    if (on_host(x)) return through_host([&] { return host_->recv(x, from, stream); });
    return exchange({{Transfer::Kind::kRecv, x, from}}, stream);
  }

  PendingPtr exchange(const std::vector<Transfer>& transfers, const Stream& stream) override;

  void all_reduce(const Tensor& x, ReduceOp op, const Stream& stream) override {
    begin_all_reduce(x, op, stream)->wait();
  }

  PendingPtr begin_all_reduce(const Tensor& x, ReduceOp op, const Stream& stream) override {
    if (on_host(x)) return through_host([&] { return host_->begin_all_reduce(x, op, stream); });
    return collective("all_reduce", x, x.bytes(), stream, [&](ncclComm_t comm) {
      return ncclAllReduce(x.data, x.data, x.numel(), nccl_type(x.dtype), nccl_op(op), comm, own());
    });
  }

  void broadcast(const Tensor& x, int root, const Stream& stream) override {
    if (on_host(x)) return through_host([&] { host_->broadcast(x, root, stream); });
    CHECK(root >= 0 && root < size(), "a broadcast from rank {} in a group of {}", root, size());
    collective("broadcast", x, rank() == root ? x.bytes() : 0, stream, [&](ncclComm_t comm) {
      return ncclBroadcast(x.data, x.data, x.numel(), nccl_type(x.dtype), root, comm, own());
    })->wait();
  }

  void all_gather(const Tensor& x, const Tensor& out, const Stream& stream) override {
    if (on_host(x)) return through_host([&] { host_->all_gather(x, out, stream); });
    check(out, stream);
    CHECK(out.numel() == size() * x.numel() && out.dtype == x.dtype, "all_gather of {} over {} ranks into {}",
          x.shape.str(), size(), out.shape.str());
    if (size() == 1 && x.data != out.data && x.bytes() > 0) cuda::copy(x.data, out.data, x.bytes(), stream);
    collective("all_gather", x, x.bytes(), stream, [&](ncclComm_t comm) {
      return ncclAllGather(x.data, out.data, x.numel(), nccl_type(x.dtype), comm, own());
    })->wait();
  }

  void barrier() override {
    through_host([&] { host_->barrier(); });
  }

  void synchronize(const Stream& stream) override;

 private:
  std::string who() const { return fmt::format("world_rank {}, {}", world_ranks_[rank()], name_); }
  cudaStream_t own() const { return handle_of(own_.stream()); }

  void check(const Tensor& x, const Stream& stream) const {
    CHECK(x.device == device_ && stream.device == device_,
          "{}: a tensor of device {} on a stream of device {}, but this group is of device {}", who(), x.device.index,
          stream.device.index, device_.index);
  }

  /// host_'s traffic and this one's.
  void count() {
    const Traffic& host = host_->traffic();
    traffic_ = {host.sent_bytes + device_traffic_.sent_bytes, host.received_bytes + device_traffic_.received_bytes,
                host.collective_bytes + device_traffic_.collective_bytes};
  }

  template <class F>
  std::invoke_result_t<F> through_host(F&& f) {
    struct Count {
      NcclGroup& group;
      ~Count() { group.count(); }
    } count{*this};
    host_->set_deadline(deadline_s_);
    return f();
  }

  template <class F>
  PendingPtr collective(const char* what, const Tensor& x, int64_t counted, const Stream& stream, F&& call) {
    check(x, stream);
    device_traffic_.collective_bytes += counted;
    count();
    if (x.bytes() == 0 || size() == 1) return std::make_unique<Done>();
    return issue(what, x.bytes(), -1, stream, std::forward<F>(call));
  }

  template <class F>
  PendingPtr issue(const char* what, int64_t bytes, int64_t peer, const Stream& stream, F&& calls);
  void connect();

  std::unique_ptr<Group> host_;
  Device device_;
  std::string name_;
  cuda::OwnedStream own_;
  cuda::Event ready_;
  std::vector<int64_t> world_ranks_;
  Traffic device_traffic_;
  std::unique_ptr<Communicator> communicator_;  // none in a group of one
};

template <class F>
PendingPtr NcclGroup::issue(const char* what, int64_t bytes, int64_t peer, const Stream& stream, F&& calls) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t asked = cudaStreamIsCapturing(handle_of(stream), &status);
  CHECK(asked == cudaSuccess, "{}: {}: {}", who(), what, cudaGetErrorString(asked));
  const bool captured = status != cudaStreamCaptureStatusNone;
  communicator_->set_deadline(deadline_s_);
  if (!captured) communicator_->pace();
  const std::shared_ptr<Operation> operation = communicator_->new_operation(what, bytes, peer);
  operation->captured = captured;
  ready_.record(stream);
  ready_.wait_on(own_.stream());
  communicator_->run(what, std::forward<F>(calls));
  operation->over.record(own_.stream());
  return std::make_unique<NcclPending>(operation, stream);
}

PendingPtr NcclGroup::exchange(const std::vector<Transfer>& transfers, const Stream& stream) {
  if (!transfers.empty() && on_host(transfers.front().x))
    return through_host([&] { return host_->exchange(transfers, stream); });
  int64_t bytes = 0;
  for (const Transfer& t : transfers) {
    check(t.x, stream);
    CHECK(t.peer >= 0 && t.peer < size() && t.peer != rank(), "rank {} of {} has no other rank {}", rank(), size(),
          t.peer);
    bytes += t.x.bytes();
    (t.kind == Transfer::Kind::kSend ? device_traffic_.sent_bytes : device_traffic_.received_bytes) += t.x.bytes();
  }
  count();
  if (bytes == 0) return std::make_unique<Done>();
  const bool one = transfers.size() == 1;
  const char* what = !one ? "exchanges" : transfers[0].kind == Transfer::Kind::kSend ? "sends" : "receives";
  return issue(what, bytes, one ? world_ranks_[transfers[0].peer] : -1, stream, [&](ncclComm_t comm) {
    for (const Transfer& t : transfers) {
      if (t.x.bytes() == 0) continue;
      const ncclDataType_t type = nccl_type(t.x.dtype);
      const ncclResult_t result = t.kind == Transfer::Kind::kSend
                                      ? ncclSend(t.x.data, t.x.numel(), type, t.peer, comm, own())
                                      : ncclRecv(t.x.data, t.x.numel(), type, t.peer, comm, own());
      if (result != ncclSuccess && result != ncclInProgress) return result;
    }
    return ncclSuccess;
  });
}

/// NCCL connects two ranks at their first message, which takes long and allocates. So there is one here for neighbours,
/// and the first rank with the last, in both directions at once; and one sum. Other pairs connect in their first scan.
void NcclGroup::connect() {
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  const OwnedTensor out({2}, DType::kInt64, device_), in({2}, DType::kInt64, device_), sum({1}, DType::kInt64, device_);
  exchange({{Transfer::Kind::kSend, out.tensor.rows(0, 1), next},
            {Transfer::Kind::kRecv, in.tensor.rows(0, 1), previous},
            {Transfer::Kind::kSend, out.tensor.rows(1, 1), previous},
            {Transfer::Kind::kRecv, in.tensor.rows(1, 1), next}},
           own_.stream())
      ->wait();
  all_reduce(sum, ReduceOp::kSum, own_.stream());
  synchronize(own_.stream());
}

void NcclGroup::synchronize(const Stream& stream) {
  if (stream.device.type == DeviceType::kCpu) return;
  if (communicator_) communicator_->set_deadline(deadline_s_);
  cuda::synchronize(stream);
}

}  // namespace

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Group> host, Device device, const NcclOptions& options) {
  CHECK(device.type == DeviceType::kCuda, "a group over NCCL needs a CUDA device");
  return std::make_unique<NcclGroup>(std::move(host), device, options);
}

}  // namespace baton
