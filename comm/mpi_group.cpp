#include "comm/mpi_group.h"

#include <algorithm>
#include <utility>

#include "comm/patience.h"
#include "runtime/profiler.h"

namespace baton {
namespace {

constexpr int kTag = 1;
// MPI counts are 32-bit, so long tensors travel in pieces. Both ends cut by this rule.
constexpr int64_t kPieceBytes = int64_t{64} << 20;

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

/// Calls f(first byte, number of bytes) for each piece.
template <class F>
void for_pieces(int64_t bytes, F&& f) {
  for (int64_t first = 0; first < bytes; first += kPieceBytes)
    f(first, static_cast<int>(std::min(kPieceBytes, bytes - first)));
}

char* at(const Tensor& x, int64_t byte) { return static_cast<char*>(x.data) + byte; }

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return MPI_FLOAT;
    case DType::kFloat64:
      return MPI_DOUBLE;
    case DType::kInt64:
      return MPI_INT64_T;
    default:
      break;
  }
  CHECK(false, "all_reduce takes float32, float64 or int64, not {}", to_string(dtype));
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(ReduceOp op) { return op == ReduceOp::kSum ? MPI_SUM : op == ReduceOp::kMax ? MPI_MAX : MPI_MIN; }

void check_host(const Tensor& x) {
  CHECK(x.device.type == DeviceType::kCpu, "the MPI transport takes host tensors, not one of a device");
}

/// Some requests of one call, and the words for the message if they fail.
class MpiPending : public Pending {
 public:
  MpiPending(std::string phrase, double deadline_s) : phrase_(std::move(phrase)), deadline_s_(deadline_s) {}

  MPI_Request* add(int64_t expected_bytes) {
    requests_.push_back({MPI_REQUEST_NULL, expected_bytes});
    return &requests_.back().handle;
  }

  bool done() override {
    for (; num_done_ < requests_.size(); ++num_done_) {
      Request& request = requests_[num_done_];
      int complete = 0;
      MPI_Status status;
      const int code = MPI_Test(&request.handle, &complete, &status);
      CHECK(code == MPI_SUCCESS, "{}: {}", phrase_, text_of(code));
      if (!complete) return false;
      if (request.expected_bytes < 0) continue;
      int received = 0;
      MPI_CHECK(MPI_Get_count(&status, MPI_BYTE, &received));
      CHECK(received == request.expected_bytes, "{}: {} bytes came where {} were expected", phrase_, received,
            request.expected_bytes);
    }
    return true;
  }

  void wait() override {
    Patience patience(deadline_s_);
    while (!done())
      if (!patience.pause()) throw LostRank(fmt::format("{}: nothing within {} s", phrase_, deadline_s_));
  }

 private:
  struct Request {
    MPI_Request handle;
    int64_t expected_bytes;  // of a receive; otherwise negative
  };
  std::string phrase_;
  double deadline_s_;
  std::vector<Request> requests_;
  size_t num_done_ = 0;
};

constexpr int64_t kNotAReceive = -1;

class MpiGroup : public Group {
 public:
  explicit MpiGroup(MPI_Comm comm) : comm_(comm) {
    MPI_CHECK(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    MPI_CHECK(MPI_Comm_rank(comm_, &rank_));
    MPI_CHECK(MPI_Comm_size(comm_, &size_));
    find_world_ranks();
  }
  ~MpiGroup() override { MPI_Comm_free(&comm_); }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  PendingPtr send(const Tensor& x, int to, const Stream&) override {
    check_host(x);
    check_peer(to);
    traffic_.sent_bytes += x.bytes();
    auto pending =
        start(fmt::format("world_rank {} sends {} bytes to world_rank {}", mine(), x.bytes(), world_ranks_[to]));
    for_pieces(x.bytes(), [&](int64_t first, int bytes) {
      MPI_CHECK(MPI_Isend(at(x, first), bytes, MPI_BYTE, to, kTag, comm_, pending->add(kNotAReceive)));
    });
    return pending;
  }

  PendingPtr recv(const Tensor& x, int from, const Stream&) override {
    check_host(x);
    check_peer(from);
    traffic_.received_bytes += x.bytes();
    auto pending =
        start(fmt::format("world_rank {} receives {} bytes from world_rank {}", mine(), x.bytes(), world_ranks_[from]));
    for_pieces(x.bytes(), [&](int64_t first, int bytes) {
      MPI_CHECK(MPI_Irecv(at(x, first), bytes, MPI_BYTE, from, kTag, comm_, pending->add(bytes)));
    });
    return pending;
  }

  void all_reduce(const Tensor& x, ReduceOp op, const Stream&) override {
    check_host(x);
    const MPI_Datatype type = mpi_type(x.dtype);
    traffic_.collective_bytes += x.bytes();
    for_pieces(x.bytes(), [&](int64_t first, int bytes) {
      const int count = bytes / static_cast<int>(size_of(x.dtype));
      run("all_reduce", x.bytes(), [&](MPI_Request* request) {
        return MPI_Iallreduce(MPI_IN_PLACE, at(x, first), count, type, mpi_op(op), comm_, request);
      });
    });
  }

  void broadcast(const Tensor& x, int root, const Stream&) override {
    check_host(x);
    CHECK(root >= 0 && root < size_, "a broadcast from rank {} in a group of {}", root, size_);
    if (rank_ == root) traffic_.collective_bytes += x.bytes();
    for_pieces(x.bytes(), [&](int64_t first, int bytes) {
      run("broadcast", x.bytes(),
          [&](MPI_Request* request) { return MPI_Ibcast(at(x, first), bytes, MPI_BYTE, root, comm_, request); });
    });
  }

  void all_gather(const Tensor& x, const Tensor& out, const Stream&) override {
    check_host(x);
    check_host(out);
    CHECK(out.numel() == size_ * x.numel() && out.dtype == x.dtype, "all_gather of {} over {} ranks into {}",
          x.shape.str(), size_, out.shape.str());
    traffic_.collective_bytes += x.bytes();
    const bool in_place = x.data == at(out, rank_ * x.bytes());
    for_pieces(x.bytes(), [&](int64_t first, int bytes) {
      // One piece of every rank's row: the rows lie x.bytes() apart.
      MPI_Datatype piece, piece_of_row;
      MPI_CHECK(MPI_Type_contiguous(bytes, MPI_BYTE, &piece));
      MPI_CHECK(MPI_Type_create_resized(piece, 0, x.bytes(), &piece_of_row));
      MPI_CHECK(MPI_Type_commit(&piece_of_row));
      run("all_gather", x.bytes(), [&](MPI_Request* request) {
        return MPI_Iallgather(in_place ? MPI_IN_PLACE : at(x, first), bytes, MPI_BYTE, at(out, first), 1, piece_of_row,
                              comm_, request);
      });
      MPI_CHECK(MPI_Type_free(&piece_of_row));
      MPI_CHECK(MPI_Type_free(&piece));
    });
  }

  void barrier() override {
    run("barrier", 0, [&](MPI_Request* request) { return MPI_Ibarrier(comm_, request); });
  }

 private:
  int mine() const { return world_ranks_[rank_]; }

  void check_peer(int peer) const {
    CHECK(peer >= 0 && peer < size_ && peer != rank_, "rank {} of {} has no other rank {}", rank_, size_, peer);
  }

  std::unique_ptr<MpiPending> start(const std::string& phrase) const {
    return std::make_unique<MpiPending>(phrase + current_ranges().str(), deadline_s_);
  }

  /// A collective: started, and waited for without holding the core.
  template <class F>
  void run(const char* name, int64_t bytes, F&& call) {
    auto pending = start(fmt::format("world_rank {}, {} of {} bytes over world_ranks {} to {}", mine(), name, bytes,
                                     world_ranks_.front(), world_ranks_.back()));
    MPI_CHECK(call(pending->add(kNotAReceive)));
    pending->wait();
  }

  void find_world_ranks() {
    std::vector<int> ranks(static_cast<size_t>(size_));
    for (int r = 0; r < size_; ++r) ranks[r] = r;
    world_ranks_.resize(ranks.size());
    MPI_Group group, world;
    MPI_CHECK(MPI_Comm_group(comm_, &group));
    MPI_CHECK(MPI_Comm_group(MPI_COMM_WORLD, &world));
    MPI_CHECK(MPI_Group_translate_ranks(group, size_, ranks.data(), world, world_ranks_.data()));
    MPI_CHECK(MPI_Group_free(&group));
    MPI_CHECK(MPI_Group_free(&world));
  }

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  std::vector<int> world_ranks_;
};

}  // namespace

void fail_mpi(int code, const char* call, const char* file, int line) {
  throw Error(ExitCode::kTransport, text_of(code), call, file, line);
}

std::unique_ptr<Group> make_mpi_group(MPI_Comm comm) { return std::make_unique<MpiGroup>(comm); }

}  // namespace baton
