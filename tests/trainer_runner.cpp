#include "tests/trainer_runner.h"

#include "kernels/elementwise.h"
#include "runtime/rng.h"
#include "tests/model_runner.h"

namespace baton::test {

std::string letters(int64_t num_tokens) {
  std::string text;
  for (uint64_t i = 0; i < static_cast<uint64_t>(num_tokens); ++i) {
    const uint64_t draw = random_bits(5, 0, i);
    text += draw % 37 == 0 ? '\n' : static_cast<char>('a' + draw % 26);
  }
  return text;
}

Config trainer_config(const ModelConfig& model, const std::string& path, DType dtype) {
  Config config;
  config.run.dtype = to_string(dtype);
  config.model = model;
  config.model.vocab = 256;
  config.data.train = config.data.val = path;
  config.data.separator = "10";
  config.train.batch = 4;
  config.train.lr = 0;
  return config;
}

void run_trainers(const Config& config, int num_ranks, Trainer::Purpose purpose, const Stream& stream,
                  const WithTrainer& f) {
  const int sp = config.parallel.sp > 0 ? static_cast<int>(config.parallel.sp) : num_ranks;
  std::vector<std::unique_ptr<Group>> sp_groups;  // by world rank
  for (int d = 0; d < num_ranks / sp; ++d)
    for (auto& group : make_local_groups(sp)) sp_groups.push_back(std::move(group));
  run_ranks(num_ranks, [&](Group& world) {
    const auto sp_group = std::move(sp_groups[static_cast<size_t>(world.rank())]);
    sp_group->set_deadline(60);
    const Topology topology = Topology::make(num_ranks, world.rank(), sp);
    const Dataset data(config.data, "data.train", config.data.train);
    Trainer trainer(config, purpose, {topology, &world, sp_group.get(), stream}, false);
    fill_weights(trainer.model().table(), trainer.model().parameters().values, 3);
    trainer.weights_changed();
    f(trainer, data, world, topology);
  });
}

std::vector<double> numbers(const Tensor& x) {
  const HostView view(x);
  view.download();
  std::vector<double> out(static_cast<size_t>(x.numel()));
  dispatch_float(x.dtype, [&]<class T>() { std::copy_n(view.host().as<T>(), x.numel(), out.begin()); });
  return out;
}

}  // namespace baton::test
