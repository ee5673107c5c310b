// The parameter table: one list of rows (name, shape, init, decay) that drives initialisation, the optimizer, the
// gradients' reduction, checkpoints and `baton plan`. Names and shapes are those of the public checkpoints.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/config.h"
#include "runtime/tensor.h"

namespace baton {

enum class Init { kNormal, kOnes, kZeros, kLrpe };

struct ParameterRow {
  std::string name;
  Shape shape;
  Init init = Init::kNormal;
  double std = 0;      // of kNormal
  bool decay = true;   // weight decay: none on norms and biases
  int64_t offset = 0;  // first element in the flat tensor, a multiple of 64
};

class ParameterTable {
 public:
  /// config.vocab must be known (> 0).
  explicit ParameterTable(const ModelConfig& config);

  const std::vector<ParameterRow>& rows() const { return rows_; }
  int64_t flat_numel() const { return flat_numel_; }  // of the flat tensor, padding included
  int64_t num_parameters() const { return num_parameters_; }
  bool has(const std::string& name) const { return index_.contains(name); }
  /// Of the first row whose name begins with `prefix`; rows stand in the order in which forward uses them.
  int64_t first_element(const std::string& prefix) const;
  /// The row's view of a flat tensor [flat_numel]; CHECKs that the name exists.
  Tensor view(const Tensor& flat, const std::string& name) const;
  Tensor view(const Tensor& flat, const ParameterRow& row) const;

 private:
  void add(const std::string& name, const Shape& shape, Init init, double std, bool decay);
  void add_weight(const std::string& name, int64_t out, int64_t in);
  void add_norm(const std::string& prefix, int64_t width, const std::string& kind);
  void add_gla(const ModelConfig& config);
  void add_tnl(const ModelConfig& config);

  double init_std_, residual_std_;
  std::vector<ParameterRow> rows_;
  std::unordered_map<std::string, size_t> index_;
  int64_t flat_numel_ = 0, num_parameters_ = 0;
};

/// Fills a flat float32 or float64 tensor on any device; an element depends on (seed, row name, index) alone.
void initialize(const ParameterTable& table, const Tensor& flat, int64_t seed);

/// A weight as kernels read it, and the place where its gradient accumulates (undefined outside training).
struct Parameter {
  Tensor value, gradient;
  bool defined() const { return value.defined(); }
};

/// All weights of a model and their gradients, each one flat tensor. In mixed precision `operands` holds a bfloat16
/// copy of the float32 weights, which matrices (two dimensions) are read from.
struct ParameterSet {
  const ParameterTable* table = nullptr;
  Tensor values, gradients, operands;

  /// CHECKs that the row exists; find returns an undefined Parameter where it does not.
  Parameter get(const std::string& name) const;
  Parameter find(const std::string& name) const { return table->has(name) ? get(name) : Parameter{}; }
};

}  // namespace baton
