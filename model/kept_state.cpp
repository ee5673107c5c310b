#include "model/kept_state.h"

#include <algorithm>

namespace baton {

KeptState::KeptState(const Model& model, const Topology& topology, int64_t batch, int64_t micro_batch, Arena& arena)
    : topology_(topology), positions_(static_cast<size_t>(batch)) {
  Arena measuring{arena.device()};
  shapes_ = model.make_states(measuring, "");
  micro_batches_.resize(static_cast<size_t>(batch / (topology.dp_size() * micro_batch)));
  for (Continuation& c : micro_batches_) {
    if (!first()) continue;
    c.entering = model.make_states(arena, "kept states");
    c.leaving = model.make_states(arena, "kept states");
  }
}

const Continuation* KeptState::micro_batch(int64_t m) const {
  return micro_batches_.empty() ? nullptr : &micro_batches_[static_cast<size_t>(m)];
}

void KeptState::clear(const Stream& stream) {
  std::fill(positions_.begin(), positions_.end(), 0);
  for (const Continuation& c : micro_batches_)
    for (const Tensor& state : c.entering) set_zero(state, stream);
}

void KeptState::advance() {
  for (Continuation& c : micro_batches_) std::swap(c.entering, c.leaving);
}

std::vector<NamedTensor> KeptState::Rows::tensors() const {
  std::vector<NamedTensor> named;
  if (positions.tensor.defined()) named.push_back({"state/position", positions});
  for (size_t l = 0; l < layers.size(); ++l) named.push_back({fmt::format("state/layer.{}", l), layers[l]});
  return named;
}

KeptState::Rows KeptState::make_rows() const {
  Rows rows;
  if (positions_.empty()) return rows;
  const auto batch = static_cast<int64_t>(positions_.size());
  rows.positions = OwnedTensor({batch}, DType::kInt64);
  for (const Tensor& state : shapes_) rows.layers.emplace_back(state.shape.with_rows(batch), state.dtype);
  return rows;
}

Tensor KeptState::rows_of(const Tensor& layer, int64_t m, int64_t dp_rank) const {
  const int64_t B = shapes_[0].dim(0);
  return layer.rows((m * topology_.dp_size() + dp_rank) * B, B);
}

void KeptState::set(const Rows& rows, const Stream& stream) {
  if (positions_.empty()) return;
  std::copy_n(rows.positions.tensor.as<int64_t>(), positions_.size(), positions_.begin());
  for (size_t m = 0; m < micro_batches_.size() && first(); ++m)
    for (size_t l = 0; l < shapes_.size(); ++l)
      copy(rows_of(rows.layers[l], static_cast<int64_t>(m), topology_.dp_rank()), micro_batches_[m].entering[l],
           stream);
  synchronize(stream);
}

KeptState::Rows KeptState::gather(Group& world, const Stream& stream) const {
  Rows rows = make_rows();
  if (positions_.empty()) return rows;
  std::copy(positions_.begin(), positions_.end(), rows.positions.tensor.as<int64_t>());
  for (size_t m = 0; m < micro_batches_.size(); ++m)
    for (size_t l = 0; l < shapes_.size(); ++l)
      for (int d = 0; d < topology_.dp_size(); ++d) {
        const Tensor part = rows_of(rows.layers[l], static_cast<int64_t>(m), d);
        if (first() && d == topology_.dp_rank()) copy(micro_batches_[m].entering[l], part, stream);
        synchronize(stream);
        world.broadcast(part, d * topology_.sp_size, Stream{});
      }
  return rows;
}

}  // namespace baton
