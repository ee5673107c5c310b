#include "model/optimizer.h"

#include "kernels/adamw.h"
#include "model/schedule.h"

namespace baton {

Optimizer::Optimizer(const ParameterSet& parameters, Arena& arena)
    : parameters_(parameters),
      m_(arena.tensor("optimizer", {parameters.table->flat_numel()}, parameters.values.dtype)),
      v_(arena.tensor("optimizer", {parameters.table->flat_numel()}, parameters.values.dtype)) {}

void Optimizer::step(const TrainConfig& config, int64_t step, double gradient_scale, const Stream& stream) {
  AdamWStep s{.lr = learning_rate(config, step), .beta1 = config.beta1, .beta2 = config.beta2, .eps = config.eps};
  s.gradient_scale = gradient_scale;
  s.step = step;
  const ParameterTable& table = *parameters_.table;
  for (const ParameterRow& row : table.rows()) {
    s.weight_decay = row.decay ? config.weight_decay : 0.0;
    adamw(s, table.view(parameters_.values, row), table.view(parameters_.gradients, row), table.view(m_, row),
          table.view(v_, row), stream);
  }
}

std::vector<NamedTensor> parameter_tensors(const ParameterSet& parameters) {
  std::vector<NamedTensor> tensors;
  for (const ParameterRow& row : parameters.table->rows())
    tensors.push_back({"param/" + row.name, parameters.table->view(parameters.values, row)});
  return tensors;
}

std::vector<NamedTensor> Optimizer::tensors() const {
  std::vector<NamedTensor> tensors = parameter_tensors(parameters_);
  for (const ParameterRow& row : parameters_.table->rows()) {
    tensors.push_back({"adam_m/" + row.name, parameters_.table->view(m_, row)});
    tensors.push_back({"adam_v/" + row.name, parameters_.table->view(v_, row)});
  }
  return tensors;
}

}  // namespace baton
