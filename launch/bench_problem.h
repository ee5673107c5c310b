// One call of the attention operator, for benchmarks: its tensors, what it runs, and the work that counts.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "kernels/linear_attention.h"
#include "runtime/memory.h"

namespace baton {

/// Bytes moved and operations of matrix products (a multiply-add is two).
struct BenchWork {
  double bytes = 0, operations = 0;
};

/// What a call cannot do without, however it is cut into stages: each input is read once and each output written once,
/// of activations in `dtype` with gates in float32 (in float64 for that dtype). Operations are those of chunks of
/// kChunk tokens, of a chunk's pairs the causal half. The states at the ends of the shard are not counted.
BenchWork forward_work(const AttentionShape& s, DType dtype);
BenchWork backward_work(const AttentionShape& s, DType dtype);

/// Inputs are uniform in [-1, 1], log gates in [-0.1, 0].
class BenchProblem {
 public:
  BenchProblem(const AttentionShape& s, DType dtype, const Stream& stream);
  BenchProblem(const BenchProblem&) = delete;
  BenchProblem& operator=(const BenchProblem&) = delete;

  /// Of whole sequences: no state enters, and nobody wants the last.
  void forward() const;
  void backward() const;

  /// The operator's stages in order. A stage's bytes are what it must move with a state kept a span: with each tensor
  /// read once by each stage, they are more than the whole call's.
  struct Stage {
    const char* name;
    std::function<void()> run;
    BenchWork work;
  };
  std::vector<Stage> stages() const;

  /// Of what a call needs beside its inputs, outputs, gradients and the states at the ends of the shard.
  int64_t scratch_bytes() const { return scratch_bytes_; }

 protected:
  Tensor make(const Shape& shape, DType dtype);
  Tensor draw(const Shape& shape, DType dtype, double low, double high);

  Stream stream_;
  std::deque<OwnedTensor> owners_;
  int64_t scratch_bytes_ = 0;
  AttentionInputs in_;
  AttentionChunks chunks_, dchunks_;
  AttentionGradients out_;
  Tensor o_, dout_, h0_, ht_, dht_, dh0_;
};

}  // namespace baton
