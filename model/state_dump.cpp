#include "model/state_dump.h"

#include <algorithm>

namespace baton {
namespace {

const Stream kHost;

bool holds(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// A shape with dimensions put in at `at`.
Shape with(const Shape& shape, int at, int64_t dim) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  dims.insert(dims.begin() + at, dim);
  return Shape{std::span<const int64_t>(dims)};
}

/// A copy in host memory, once all before it on the stream has run; undefined where x is.
OwnedTensor to_host(const Tensor& x, const Stream& stream) {
  if (!x.defined()) return {};
  OwnedTensor y(x.shape, x.dtype);
  copy(x, y, stream);
  synchronize(stream);
  return y;
}

/// Token `t` of x [B, T, ...] as [B, ...].
OwnedTensor token_of(const Tensor& x, int64_t t) {
  std::vector<int64_t> dims{x.dim(0)};
  for (int i = 2; i < x.shape.rank(); ++i) dims.push_back(x.dim(i));
  OwnedTensor y(Shape{std::span<const int64_t>(dims)}, x.dtype);
  const int64_t B = x.dim(0), T = x.dim(1), bytes = y.tensor.bytes() / B;
  for (int64_t b = 0; b < B; ++b)
    std::copy_n(static_cast<const char*>(x.data) + (b * T + t) * bytes, bytes,
                static_cast<char*>(y.tensor.data) + b * bytes);
  return y;
}

/// x [H] for each of B sequences.
OwnedTensor spread(const Tensor& x, int64_t B) {
  OwnedTensor y({B, x.dim(0)}, x.dtype);
  for (int64_t b = 0; b < B; ++b) copy(x, y.tensor.rows(b, 1).view(x.shape), kHost);
  return y;
}

}  // namespace

StateDump::StateDump(const Config& config, const Topology& topology, const std::string& dumps_dir, int64_t step)
    : info_{step, config.dump.grid, config.data.seq_len},
      topology_(topology),
      dir_(dumps_dir),
      window_(config.train.window > 0 ? config.train.window : config.data.seq_len),
      state_(holds(config.dump.what, "state")),
      dstate_(holds(config.dump.what, "dstate")),
      gate_(holds(config.dump.what, "gate")),
      layers_(parse_index_list("dump.layers", config.dump.layers, config.model.layers)) {
  if (topology.dp_rank() == 0) part_ = std::make_unique<DumpPart>(dumps_dir, step, topology.sp_rank());
}

Probe StateDump::probe() {
  if (part_ == nullptr) return {};
  return [this](const Probed& p) { see(p); };
}

std::string StateDump::commit(Group& world) {
  together(world, [&] {
    if (part_ != nullptr) part_->close();
  });
  std::string path;
  together(world, [&] {
    if (world.rank() == 0) path = commit_dump(dir_, info_, topology_.sp_size);
  });
  return broadcast(world, path, 0);
}

void StateDump::see(const Probed& p) {
  if (std::find(layers_.begin(), layers_.end(), p.layer) == layers_.end()) return;
  const OwnedTensor h(p.in.shape.state(), p.chunks.state.dtype, p.stream.device);
  const OwnedTensor gk = to_host(gate_ ? p.in.gk : Tensor{}, p.stream),
                    gv = to_host(gate_ ? p.in.gv : Tensor{}, p.stream);
  const int64_t first = num_grid_points(p.range.first, info_.grid), last = num_grid_points(p.range.last, info_.grid);
  for (int64_t point = first; point < last; ++point) {
    add_state(p, point * info_.grid, h);
    add_gates(p, gk, gv, point * info_.grid);
  }
  state_at(p.in, p.chunks, 0, h, p.stream);
  const int64_t P = topology_.sp_size, W = (info_.T_total + window_ - 1) / window_;
  const int64_t row = p.range.first / window_ * P + topology_.sp_rank();
  const Shape block = with(h.tensor.shape, 0, 1);
  part_->add(fmt::format("sp/layer.{}/entering", p.layer), block.with_rows(W * P), {row, 0, 0, 0, 0},
             to_host(h.tensor.view(block), p.stream));
}

void StateDump::add_state(const Probed& p, int64_t position, const Tensor& h) {
  const int64_t token = position - p.range.first;
  if (state_) {
    state_at(p.in, p.chunks, token, h, p.stream);
    add(p, "state", position, to_host(h, p.stream));
  }
  if (dstate_) {
    state_gradient_at(p.in, p.dchunks, p.dout, token, h, p.stream);
    add(p, "dstate", position, to_host(h, p.stream));
  }
}

void StateDump::add_gates(const Probed& p, const Tensor& gk, const Tensor& gv, int64_t position) {
  const int64_t token = position - p.range.first;
  if (gk.defined() && p.in.shape.gate == GateKind::kFixed)
    add(p, "gate", position, spread(gk, p.in.shape.B));
  else if (gk.defined())
    add(p, "gate", position, token_of(gk, token));
  if (gv.defined()) add(p, "gate_v", position, token_of(gv, token));
}

void StateDump::add(const Probed& p, const std::string& what, int64_t position, const Tensor& block) {
  const int64_t point = position / info_.grid;
  const Shape shape = with(block.shape, 1, 1), whole = with(block.shape, 1, num_grid_points(info_.T_total, info_.grid));
  const int64_t start[Shape::kMaxRank] = {0, point};
  part_->add(fmt::format("layer.{}/{}", p.layer, what), whole,
             Shape{std::span(start, static_cast<size_t>(shape.rank()))}, block.view(shape));
}

}  // namespace baton
