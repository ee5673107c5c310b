// KeptState: what goes on from one optimizer step to the next in stream order. For every row of the batch: the detached
// state of each layer after the row's last token, and the position of its next token in its document.
//
// Row b of the batch is row b % B of micro-batch m of dp rank d, where b / B = m dp + d and B = train.micro_batch. Its
// states lie on the first rank of the sp_group, on the device. In permuted order there are none, and nothing is kept.
#pragma once

#include "comm/topology.h"
#include "model/sequence_pass.h"
#include "runtime/checkpoint.h"

namespace baton {

class KeptState {
 public:
  /// Keeps nothing.
  KeptState() = default;
  /// Lays out the states that enter a step and those that leave it. They are zero, and every row is at position 0.
  KeptState(const Model& model, const Topology& topology, int64_t batch, int64_t micro_batch, Arena& arena);

  /// For SequencePass::train, of micro-batch m of this dp rank; null where nothing is kept.
  const Continuation* micro_batch(int64_t m) const;
  /// By row of the batch.
  std::vector<int64_t>& positions() { return positions_; }

  /// Every row starts anew.
  void clear(const Stream& stream);
  /// A step is whole: what left it enters the next. A step that is dropped before does not show.
  void advance();

  /// All rows, whole and in host memory, as a checkpoint has them.
  struct Rows {
    std::vector<OwnedTensor> layers;  // state/layer.N [batch, H, K, V]
    OwnedTensor positions;            // state/position, int64 [batch]
    std::vector<NamedTensor> tensors() const;
  };
  /// Zeros at position 0, to be read into.
  Rows make_rows() const;
  void set(const Rows& rows, const Stream& stream);
  /// Collective: the same on every rank.
  Rows gather(Group& world, const Stream& stream) const;

 private:
  bool first() const { return topology_.sp_rank() == 0; }
  /// The rows of micro-batch m of a dp rank.
  Tensor rows_of(const Tensor& layer, int64_t m, int64_t dp_rank) const;

  Topology topology_;
  States shapes_;  // of a micro-batch, without data
  std::vector<int64_t> positions_;
  std::vector<Continuation> micro_batches_;
};

}  // namespace baton
