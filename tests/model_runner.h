// Runs a small model over simulated ranks on made-up tokens: what the model's tests compare.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/sequence_pass.h"
#include "tests/run_ranks.h"

namespace baton::test {

struct ModelRun {
  ModelConfig config;
  DType dtype = DType::kFloat64;
  Stream stream = {};                        // of the device that computes; on a GPU num_ranks is 1
  int64_t B = 2, T_total = 150, window = 0;  // window 0: the whole sequence
  bool exact = true;
  int num_ranks = 1;
  ScanStrategy scan = ScanStrategy::kChain;
  int ranks_per_node = 1;
  double early_send = 0;
  std::vector<int64_t> starts = {};  // of packed documents, in every row
  int64_t first_token = 0;           // of the made-up text
  int64_t seed = 3;
  int64_t bucket_bytes = 0;                 // of the gradients' reduction under backward; 0: one sum after it
  std::function<Probe(Group&)> probe = {};  // of each rank, made on it before the pass
};

struct ModelResult {
  double loss_sum = 0;
  int64_t counted = 0;
  std::vector<double> gradients;  // flat, summed over ranks
  int64_t sent_bytes = 0;         // of the scans of all ranks
};

/// A model of 2 layers, width 32 and 2 heads; family and mixer as given.
ModelConfig small_model(const std::string& family, const std::string& mixer = "vector");

/// Token t of row b: made up from (b, t) alone; targets are the next token, -1 at a document's last.
int32_t made_up_token(int64_t b, int64_t t, int64_t vocab);

/// Weights of the run: normal, of size 0.2 but around 1 for norms, so that no gradient vanishes.
void fill_weights(const ParameterTable& table, const Tensor& flat, int64_t seed);

/// Loss and gradients of the run. change, where given, edits the weights first.
ModelResult run_model(const ModelRun& run,
                      const std::function<void(const ParameterTable&, const Tensor&)>& change = {});

/// ||a - b|| / ||a||; ||a - b|| where a is zero.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace baton::test
