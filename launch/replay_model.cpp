#include "launch/compute.h"
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

/// The shard's tokens, targets and positions; one document, the whole sequence. Host tensors.
struct Shard {
  Shard(const ReplayReport& report, Range range);

  OwnedTensor tokens, targets, positions;
  int64_t counted = 0;  // targets that count
};

Shard::Shard(const ReplayReport& report, Range range)
    : tokens(cut_tokens(report.read("/tokens", DType::kInt32), range)),
      targets(cut_tokens(report.read("/targets", DType::kInt32), range)),
      positions(tokens.tensor.shape, DType::kInt64) {
  for (int64_t i = 0; i < positions.tensor.numel(); ++i) {
    positions.tensor.as<int64_t>()[i] = range.first + i % range.size();
    counted += targets.tensor.as<int32_t>()[i] >= 0;
  }
}

}  // namespace

void replay_model(ReplayReport& report) {
  Group& group = report.group();
  const Stream& stream = report.stream();
  const Hdf5File& file = report.file();
  ModelConfig config;
  std::unique_ptr<Shard> shard;
  OwnedTensor tokens, targets, positions;
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
    shard = std::make_unique<Shard>(report, shard_of(T_total, group.size(), group.rank()));
    tokens = to_device(shard->tokens, stream);
    targets = to_device(shard->targets, stream);
    positions = to_device(shard->positions, stream);
    T_max = tokens.tensor.dim(1);
    Arena measure{stream.device};
    build(measure);
    arena = std::make_unique<Arena>(stream.device, measure.used_bytes());
    model = build(*arena);
    for (const ParameterRow& row : model->table().rows()) {
      CHECK_INPUT(file.exists("/param/" + row.name), "FILE = {}: lacks parameter {}", file.path(), row.name);
      file.read("/param/" + row.name, model->table().view(model->parameters().values, row));
    }
    model->refresh_operands(stream);
  });

  Batch batch;
  batch.tokens = tokens;
  batch.targets = targets;
  batch.positions = positions;
  const OwnedTensor shard_tokens({group.size(), B}, DType::kInt64);
  gather_tokens_of_shards(OwnedTensor({B, T_max}, DType::kUInt8), group, shard_tokens);  // no document starts
  const OwnedTensor its_copy = to_device(shard_tokens, stream);
  batch.shard_tokens = its_copy;
  const int64_t scratch = StateScan::scratch_numel(report.scan(), group, model->largest_carry(), model->carry_rows());
  const OwnedTensor carries({scratch}, report.precision().accum, stream.device);
  StateScan scan(group, report.scan(), carries);
  model->forward(batch, &scan, entering, leaving, stream);
  const int64_t all_counted = all_reduce(group, shard->counted, ReduceOp::kSum);
  const OwnedTensor logits({B * T_max, config.vocab}, report.precision().accum, stream.device);
  model->logits(0, B * T_max, logits, stream);
  const double loss =
      all_reduce(group, model->head_loss(batch, 1.0 / static_cast<double>(all_counted), true, stream), ReduceOp::kSum);
  model->backward(batch, scan, entering, dleaving, dentering, nullptr, {}, stream);
  group.all_reduce(model->parameters().gradients, ReduceOp::kSum, stream);

  const HostView host_logits(logits);
  host_logits.download();
  report.judge("/logits", gather_tokens(group, host_logits.host().view({B, T_max, config.vocab}), T_total, Stream{}));
  OwnedTensor mean({1}, DType::kFloat64);
  mean.tensor.as<double>()[0] = loss / static_cast<double>(all_counted);
  report.judge("/loss", mean);
  const auto judge = [&](const std::string& name, const Tensor& mine) {
    const HostView view(mine);
    view.download();
    report.judge(name, view.host());
  };
  for (const ParameterRow& row : model->table().rows())
    judge("/grad/" + row.name, model->table().view(model->parameters().gradients, row));
  for (int64_t l = 0; l < config.layers; ++l) {
    group.broadcast(leaving[l], group.size() - 1, stream);
    judge(fmt::format("/state/{}", l), leaving[l]);
  }
  report.expect_complete("/grad");
  report.expect_complete("/state");
}

}  // namespace baton
