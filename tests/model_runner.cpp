#include "tests/model_runner.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "runtime/rng.h"

namespace baton::test {

ModelConfig small_model(const std::string& family, const std::string& mixer) {
  ModelConfig c;
  c.family = family;
  c.mixer = mixer;
  c.layers = 2;
  c.width = 32;
  c.heads = 2;
  c.ffn = 24;
  c.vocab = 11;
  c.low_rank = 4;
  return c;
}

int32_t made_up_token(int64_t b, int64_t t, int64_t vocab) {
  return static_cast<int32_t>(random_bits(17, static_cast<uint64_t>(b), static_cast<uint64_t>(t)) %
                              static_cast<uint64_t>(vocab));
}

void fill_weights(const ParameterTable& table, const Tensor& flat, int64_t seed) {
  const HostView view(flat);
  for (size_t r = 0; r < table.rows().size(); ++r) {
    const ParameterRow& row = table.rows()[r];
    const Tensor x = table.view(view.host(), row);
    const double centre = row.init == Init::kOnes ? 1.0 : 0.0;
    dispatch_float(x.dtype, [&]<class T>() {
      for (int64_t i = 0; i < x.numel(); ++i)
        x.as<T>()[i] = static_cast<T>(
            centre + 0.2 * static_cast<float>(random_normal(static_cast<uint64_t>(seed), r, static_cast<uint64_t>(i))));
    });
  }
  view.upload();
}

namespace {

void load_made_up(const ModelRun& run, Range range, const Batch& batch) {
  const auto is_start = [&](int64_t t) {
    return t > 0 && std::find(run.starts.begin(), run.starts.end(), t) != run.starts.end();
  };
  int64_t document = 0;  // where the document of range.first began
  for (int64_t t : run.starts)
    if (t <= range.first) document = std::max(document, t);
  for (int64_t b = 0; b < run.B; ++b) {
    int64_t began = document;
    for (int64_t t = range.first; t < range.last; ++t) {
      const int64_t i = b * range.size() + t - range.first;
      if (is_start(t)) began = t;
      const int64_t in_text = run.first_token + t;
      batch.tokens.as<int32_t>()[i] = made_up_token(b, in_text, run.config.vocab);
      batch.targets.as<int32_t>()[i] = is_start(t + 1) ? -1 : made_up_token(b, in_text + 1, run.config.vocab);
      batch.starts.as<uint8_t>()[i] = is_start(t);
      batch.positions.as<int64_t>()[i] = t - began;
    }
  }
}

}  // namespace

ModelResult run_model(const ModelRun& run, const std::function<void(const ParameterTable&, const Tensor&)>& change) {
  ModelResult total;
  std::mutex mutex;
  run_ranks(run.num_ranks, [&](Group& group) {
    group.set_ranks_per_node(run.ranks_per_node);
    const Stream& stream = run.stream;
    const int64_t window = run.window > 0 ? run.window : run.T_total;
    const WindowPlan plan{run.T_total, window, group.size(), group.rank()};
    std::unique_ptr<Model> model;
    std::unique_ptr<SequencePass> pass;
    std::unique_ptr<GradientReduction> reduction;
    const auto lay_out = [&](Arena& arena) {
      const int64_t T = WindowPlan::capacity(run.T_total, window, group.size());
      model = std::make_unique<Model>(run.config, run.dtype, run.B, T, true, arena);
      pass =
          std::make_unique<SequencePass>(*model, group, run.scan, run.B, T, plan.num_windows(), arena, run.early_send);
      if (run.bucket_bytes > 0)
        reduction = std::make_unique<GradientReduction>(group, model->parameters().gradients, model->num_layers() + 1,
                                                        arena, run.bucket_bytes);
    };
    Arena measuring{stream.device};
    lay_out(measuring);
    Arena arena(stream.device, measuring.used_bytes());
    lay_out(arena);
    fill_weights(model->table(), model->parameters().values, run.seed);
    if (change) change(model->table(), model->parameters().values);
    model->refresh_operands(stream);
    if (reduction) reduction->start(stream);
    const auto r = pass->train(
        plan, run.exact, 1.0, [&](Range range, const Batch& batch) { load_made_up(run, range, batch); }, nullptr, {},
        reduction.get(), run.probe ? run.probe(group) : Probe{}, stream);
    const Tensor gradients = model->parameters().gradients;
    if (reduction)
      reduction->finish();
    else
      group.all_reduce(gradients, ReduceOp::kSum, stream);
    const std::lock_guard lock(mutex);
    total.loss_sum += r.loss_sum;
    total.counted += r.counted;
    total.sent_bytes += pass->scan().sent_bytes();
    if (group.rank() > 0) return;
    const HostView view(gradients);
    view.download();
    total.gradients.resize(static_cast<size_t>(gradients.numel()));
    dispatch_float(gradients.dtype,
                   [&]<class T>() { std::copy_n(view.host().as<T>(), gradients.numel(), total.gradients.begin()); });
  });
  return total;
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += a[i] * a[i];
  }
  if (a.size() != b.size()) return INFINITY;
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

}  // namespace baton::test
