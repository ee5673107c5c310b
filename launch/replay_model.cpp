#include "launch/replay.h"
#include "launch/tokens.h"
#include "model/model.h"

namespace baton {
namespace {

ModelConfig model_config(const Hdf5File& file) {
  ModelConfig c;
  const auto integer = [&](const char* name, int64_t& value) {
    if (file.has_attribute("/", name)) value = file.read_int("/", name);
  };
  c.family = file.read_string("/", "family");
  integer("layers", c.layers);
  integer("heads", c.heads);
  integer("width", c.width);
  integer("ffn", c.ffn);
  integer("vocab", c.vocab);
  integer("low_rank", c.low_rank);
  if (file.has_attribute("/", "norm_eps")) c.norm_eps = file.read_double("/", "norm_eps");
  return c;
}

/// The shard's tokens, targets and positions; one document, the whole sequence.
Batch make_batch(const ReplayReport& report, Range range, std::vector<OwnedTensor>& owned) {
  const auto read = [&](const char* name) {
    const OwnedTensor whole(report.file().shape(name), DType::kInt32);
    report.file().read(name, whole);
    return owned.emplace_back(cut_tokens(whole, range)).tensor;
  };
  Batch batch;
  batch.tokens = read("/tokens");
  batch.targets = read("/targets");
  batch.positions = owned.emplace_back(batch.tokens.shape, DType::kInt64).tensor;
  for (int64_t i = 0; i < batch.positions.numel(); ++i)
    batch.positions.as<int64_t>()[i] = range.first + i % range.size();
  return batch;
}

}  // namespace

void replay_model(ReplayReport& report) {
  Group& group = report.group();
  const Stream stream;
  const Hdf5File& file = report.file();
  std::vector<OwnedTensor> owned;
  ModelConfig config;
  Batch batch;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Model> model;
  int64_t T_total = 0, T_max = 0, B = 0;
  States entering, leaving, dentering, dleaving;
  const auto build = [&](Arena& a) {
    auto m = std::make_unique<Model>(config, report.dtype(), B, T_max, true, a);
    for (States* states : {&entering, &leaving, &dentering, &dleaving}) *states = m->make_states(a, "states");
    return m;
  };
  together(group, [&] {
    config = model_config(file);
    B = file.shape("/tokens")[0];
    T_total = file.shape("/tokens")[1];
    batch = make_batch(report, shard_of(T_total, group.size(), group.rank()), owned);
    T_max = batch.tokens.dim(1);
    Arena measure{Device{}};
    build(measure);
    arena = std::make_unique<Arena>(Device{}, measure.used_bytes());
    model = build(*arena);
    for (const ParameterRow& row : model->table().rows()) {
      CHECK_INPUT(file.exists("/param/" + row.name), "FILE = {}: lacks parameter {}", file.path(), row.name);
      file.read("/param/" + row.name, model->table().view(model->parameters().values, row));
    }
  });

  StateScan scan(group, ScanStrategy::kChain);
  model->forward(batch, &scan, entering, leaving, stream);
  int64_t counted = 0;
  for (int64_t i = 0; i < batch.targets.numel(); ++i) counted += batch.targets.as<int32_t>()[i] >= 0;
  const int64_t all_counted = all_reduce(group, counted, ReduceOp::kSum);
  const OwnedTensor logits({B * T_max, config.vocab}, report.dtype());
  model->logits(0, B * T_max, logits, stream);
  const double loss =
      all_reduce(group, model->head_loss(batch, 1.0 / static_cast<double>(all_counted), true, stream), ReduceOp::kSum);
  model->backward(batch, scan, entering, dleaving, dentering, {}, stream);
  group.all_reduce(model->parameters().gradients, ReduceOp::kSum, stream);

  report.judge("/logits", gather_tokens(group, logits.tensor.view({B, T_max, config.vocab}), T_total, stream));
  OwnedTensor mean({1}, DType::kFloat64);
  mean.tensor.as<double>()[0] = loss / static_cast<double>(all_counted);
  report.judge("/loss", mean);
  for (const ParameterRow& row : model->table().rows())
    report.judge("/grad/" + row.name, model->table().view(model->parameters().gradients, row));
  for (int64_t l = 0; l < config.layers; ++l) {
    group.broadcast(leaving[l], group.size() - 1, stream);
    report.judge(fmt::format("/state/{}", l), leaving[l]);
  }
  report.expect_complete("/grad");
  report.expect_complete("/state");
}

}  // namespace baton
