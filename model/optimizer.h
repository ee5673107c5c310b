// AdamW over the parameter table: moments are two more flat tensors beside the weights.
#pragma once

#include "model/parameters.h"
#include "runtime/checkpoint.h"
#include "runtime/memory.h"

namespace baton {

class Optimizer {
 public:
  Optimizer(const ParameterSet& parameters, Arena& arena);

  /// One update from the gradients times gradient_scale; weight decay on the rows that have it.
  void step(const TrainConfig& config, int64_t step, double gradient_scale, const Stream& stream);

  /// "param/NAME", "adam_m/NAME", "adam_v/NAME": what a checkpoint holds.
  std::vector<NamedTensor> tensors() const;

 private:
  ParameterSet parameters_;
  Tensor m_, v_;
};

/// "param/NAME" of every row.
std::vector<NamedTensor> parameter_tensors(const ParameterSet& parameters);

}  // namespace baton
