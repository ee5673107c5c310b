#include "kernels/linear_attention.h"
#include "launch/compute.h"
#include "launch/replay.h"
#include "launch/tokens.h"
#include "model/carry.h"

namespace baton {
namespace {

/// Gates of a fixed or scalar kind are stored spread over K (and T): takes channel 0 (of token 0).
OwnedTensor first_channel(const Tensor& gk, GateKind gate) {
  const int64_t B = gk.dim(0), T = gk.dim(1), H = gk.dim(2), K = gk.dim(3);
  const int64_t count = gate == GateKind::kFixed ? H : B * T * H;
  OwnedTensor g(gate == GateKind::kFixed ? Shape{H} : Shape{B, T, H}, gk.dtype);
  dispatch_float(gk.dtype, [&]<class T_>() {
    for (int64_t i = 0; i < count; ++i) g.tensor.as<T_>()[i] = gk.as<T_>()[i * K];
  });
  return g;
}

/// Document starts of the shard; the sequence's own start is not one, since h0 enters there.
OwnedTensor shard_starts(const std::vector<int64_t>& boundaries, int64_t B, Range range) {
  OwnedTensor starts({B, range.size()}, DType::kUInt8);
  for (int64_t p : boundaries)
    if (p > 0 && p >= range.first && p < range.last)
      for (int64_t b = 0; b < B; ++b) starts.tensor.as<uint8_t>()[b * range.size() + p - range.first] = 1;
  return starts;
}

/// One rank's tensors of a case.
struct OperatorCase {
  OperatorCase(const std::string& name, const ReplayReport& report);

  std::vector<OwnedTensor> owned;
  OwnedTensor starts;  // on the host
  Range range;
  int64_t T_total = 0;
  AttentionInputs in;
  Tensor dout, h0, dht;
};

OperatorCase::OperatorCase(const std::string& name, const ReplayReport& report) {
  const Hdf5File& file = report.file();
  const auto own = [&](const OwnedTensor& x) { return owned.emplace_back(to_device(x, report.stream())).tensor; };
  const DType compute = report.precision().compute, accum = report.precision().accum;
  const auto read = [&](const char* tensor, DType dtype) { return report.read(name + "/in/" + tensor, dtype); };
  const OwnedTensor q = read("q", compute), v = read("v", compute);
  T_total = q.tensor.dim(1);
  range = shard_of(T_total, report.group().size(), report.group().rank());
  const auto shard = [&](const Tensor& x) { return own(cut_tokens(x, range)); };
  const GateKind gate = parse_gate_kind(file.read_string(name, "gate"));
  in.shape = {q.tensor.dim(0), range.size(), q.tensor.dim(2), q.tensor.dim(3), v.tensor.dim(3), gate};
  choose_spans(in.shape, compute);
  in.q = shard(q);
  in.k = shard(read("k", compute));
  in.v = shard(v);
  if (gate == GateKind::kFixed) in.gk = own(first_channel(read("gk", accum), gate));
  if (gate == GateKind::kScalar) in.gk = shard(first_channel(read("gk", accum), gate));
  if (gate == GateKind::kVector || gate == GateKind::kBilinear) in.gk = shard(read("gk", accum));
  if (gate == GateKind::kBilinear) in.gv = shard(read("gv", accum));
  starts = shard_starts(file.read_ints(name, "boundaries"), in.shape.B, range);
  in.starts = own(starts);
  in.scale = file.read_double(name, "scale");
  dout = shard(read("dout", compute));
  h0 = own(read("h0", accum));
  dht = own(read("dht", accum));
}

}  // namespace

void replay_operator_case(const std::string& name, ReplayReport& report) {
  Group& group = report.group();
  const Stream& stream = report.stream();
  std::unique_ptr<OperatorCase> c;
  together(group, [&] { c = std::make_unique<OperatorCase>(name, report); });
  const AttentionInputs& in = c->in;
  const AttentionShape& s = in.shape;
  const auto make_like = [&](const Shape& shape, DType dtype) {
    return c->owned.emplace_back(shape, dtype, stream.device).tensor;
  };
  const auto make = [&](const Shape& shape) { return make_like(shape, report.precision().accum); };
  const auto like = [&](const Tensor& x) { return x.defined() ? make_like(x.shape, x.dtype) : Tensor{}; };
  const AttentionChunks chunks = make_attention_chunks(s, report.precision().accum, false, make_like),
                        dchunks = make_attention_chunks(s, report.precision().accum, true, make_like);
  const Tensor ht = make(s.state()), dh0 = make(s.state()), o = like(in.v);
  const AttentionGradients grad{like(in.q), like(in.k), like(in.v), s.gate == GateKind::kFixed ? Tensor{} : like(in.gk),
                                like(in.gv)};

  const OwnedTensor shard_tokens({group.size(), s.B}, DType::kInt64);
  gather_tokens_of_shards(c->starts, group, shard_tokens);
  const OwnedTensor its_copy = to_device(shard_tokens, stream);
  const FixedDecays fixed{its_copy, make({s.B, s.H, s.K}), starts_in_every_row(c->starts)};
  const int64_t scratch = StateScan::scratch_numel(report.scan(), group, carry_numel(s), s.B * s.H);
  StateScan scan(group, report.scan(), make({scratch}));
  carry_forward(in, chunks, stream);
  scan.begin(Direction::kForward, c->h0, ht, forward_carry(in, chunks, fixed, stream), stream);
  scan.finish(stream);
  output_forward(in, chunks, o, stream);
  carry_backward(in, chunks, c->dout, dchunks, stream);
  scan.begin(Direction::kReversed, c->dht, dh0, backward_carry(in, chunks, dchunks, fixed, stream), stream);
  scan.finish(stream);
  attention_gradients(in, chunks, dchunks, c->dout, grad, stream);

  const std::string out = name + "/out/", input = name + "/in/";
  const auto judge = [&](const char* tensor, const Tensor& mine, const std::string& a = "", const std::string& b = "") {
    if (!mine.defined()) return;
    const HostView view(mine);
    view.download();
    const OwnedTensor whole = gather_tokens(group, view.host(), c->T_total, Stream{});
    report.judge(out + tensor, whole, a, b);
  };
  judge("o", o);
  judge("dq", grad.dq);
  judge("dk", grad.dk);
  judge("dv", grad.dv);
  judge("dgk", grad.dgk, input + "k", out + "dk");
  judge("dgv", grad.dgv, input + "v", out + "dv");
  group.broadcast(ht, group.size() - 1, stream);  // of the last rank: the state after the whole sequence
  const HostView last(ht), first(dh0);
  last.download();
  first.download();
  report.judge(out + "ht", last.host());
  report.judge(out + "dh0", first.host());
  report.expect_complete(name + "/out");
}

}  // namespace baton
