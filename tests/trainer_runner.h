// Trainers of a small model on a small text, over simulated ranks in sp_groups.
#pragma once

#include <functional>
#include <string>

#include "model/trainer.h"
#include "tests/unit/scratch_dir.h"

namespace baton::test {

/// `num_tokens` letters, and now and then a line end.
std::string letters(int64_t num_tokens);

/// A model of `model` on the bytes of `path`; line ends separate documents.
Config trainer_config(const ModelConfig& model, const std::string& path, DType dtype = DType::kFloat64);

/// f runs once a rank, each on its own thread, with a trainer whose weights are fill_weights'. On a GPU num_ranks is 1.
using WithTrainer = std::function<void(Trainer& trainer, const Dataset& data, Group& world, const Topology& topology)>;
void run_trainers(const Config& config, int num_ranks, Trainer::Purpose purpose, const Stream& stream,
                  const WithTrainer& f);

/// Numbers of a tensor on any device.
std::vector<double> numbers(const Tensor& x);

}  // namespace baton::test
