#include "tests/reference/attention_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "runtime/bfloat16.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"

namespace baton::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class F>
void dispatch(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) return f.template operator()<BFloat16>();
  dispatch_float(dtype, f);
}

/// Makes tensors on a stream's device. `activation` is the dtype of q, k, v, o and their gradients, `number` of the
/// rest.
struct Maker {
  Stream stream;
  DType activation, number;

  Maker(const Stream& where, DType dtype)
      : stream(where), activation(dtype), number(dtype == DType::kBFloat16 ? DType::kFloat32 : dtype) {}

  OwnedTensor place(OwnedTensor host) const {
    if (stream.device == Device{}) return host;
    OwnedTensor x(host.tensor.shape, host.tensor.dtype, stream.device);
    copy(host, x, stream);
    synchronize(stream);
    return x;
  }
  OwnedTensor make(const std::vector<double>& from, const Shape& dims, DType dtype) const {
    OwnedTensor x(dims, dtype);
    dispatch(dtype, [&]<class Real>() {
      std::transform(from.begin(), from.end(), x.tensor.as<Real>(), [](double y) { return static_cast<Real>(y); });
    });
    return place(std::move(x));
  }
  OwnedTensor make_nan(const Shape& dims, DType dtype) const {
    return make(std::vector<double>(static_cast<size_t>(dims.numel()), kNan), dims, dtype);
  }
  /// Bytes of ones: NaN as any float.
  OwnedTensor make_ones(const Shape& dims) const {
    OwnedTensor x(dims, DType::kUInt8);
    std::fill_n(x.tensor.as<uint8_t>(), dims.numel(), uint8_t{0xff});
    return place(std::move(x));
  }
  std::vector<double> to_vector(const Tensor& x) const {
    OwnedTensor host(x.shape, x.dtype);
    copy(x, host, stream);
    synchronize(stream);
    std::vector<double> y;
    dispatch(x.dtype, [&]<class Real>() {
      const Real* from = host.tensor.as<Real>();
      std::transform(from, from + x.numel(), std::back_inserter(y), [](Real z) { return static_cast<double>(z); });
    });
    return y;
  }
};

/// The tensors of one rank.
struct Shard {
  AttentionShape shape;
  double scale;
  Maker maker;
  OwnedTensor q, k, v, gk, gv, starts, dout, o, dq, dk, dv, dgk, dgv;
  std::vector<OwnedTensor> scratch;
  AttentionChunks chunks, dchunks;

  Shard(const AttentionProblem& p, const Maker& made_by) : shape(p.shape), scale(p.scale), maker(made_by) {
    const int64_t B = shape.B, T = shape.T, H = shape.H, K = shape.K, V = shape.V;
    const Shape keys{B, T, H, K}, values{B, T, H, V};
    const DType dtype = maker.activation, number = maker.number;
    q = maker.make(p.q, keys, dtype), k = maker.make(p.k, keys, dtype);
    v = maker.make(p.v, values, dtype), dout = maker.make(p.dout, values, dtype);
    dq = maker.make_nan(keys, dtype), dk = maker.make_nan(keys, dtype);
    o = maker.make_nan(values, dtype), dv = maker.make_nan(values, dtype);
    choose_spans(shape, dtype);
    if (p.span > 0 && shape.span > kChunk) shape.span = p.span, shape.walk = p.walk;
    for (const bool gradient : {false, true}) {
      (gradient ? dchunks : chunks) =
          make_attention_chunks(shape, number, gradient, [&](const Shape& dims, DType kind) -> Tensor {
            return scratch.emplace_back(kind == DType::kUInt8 ? maker.make_ones(dims) : maker.make_nan(dims, kind));
          });
    }
    const bool scalar = shape.gate == GateKind::kScalar, bilinear = shape.gate == GateKind::kBilinear;
    if (shape.gate == GateKind::kFixed) gk = maker.make(p.gk, {H}, number);
    if (scalar || bilinear || shape.gate == GateKind::kVector) {
      const Shape gates = scalar ? Shape{B, T, H} : keys;
      gk = maker.make(p.gk, gates, number), dgk = maker.make_nan(gates, number);
    }
    if (bilinear) {
      gv = maker.make(p.gv, values, number), dgv = maker.make_nan(values, number);
    }
    if (p.starts.empty()) return;
    OwnedTensor host({B, T}, DType::kUInt8);
    std::copy(p.starts.begin(), p.starts.end(), host.tensor.as<uint8_t>());
    starts = maker.place(std::move(host));
  }

  AttentionInputs inputs() const {
    return {.shape = shape, .q = q, .k = k, .v = v, .gk = gk, .gv = gv, .starts = starts, .scale = scale};
  }
  OwnedTensor make_state() const { return maker.make_nan(shape.state(), maker.number); }
  void forward(const Tensor& h0, const Tensor& ht, const Cross& cross = {}) const {
    carry_forward(inputs(), chunks, maker.stream);
    if (cross)
      cross(false, h0, ht, inputs(), chunks, dchunks);
    else
      advance_forward(inputs(), chunks, h0, ht, maker.stream);
    output_forward(inputs(), chunks, o, maker.stream);
  }
  void backward(const Tensor& dht, const Tensor& dh0, const Cross& cross = {}) const {
    carry_backward(inputs(), chunks, dout, dchunks, maker.stream);
    if (cross)
      cross(true, dht, dh0, inputs(), chunks, dchunks);
    else
      advance_backward(inputs(), chunks, dchunks, dht, dh0, maker.stream);
    attention_gradients(inputs(), chunks, dchunks, dout, {dq, dk, dv, dgk, dgv}, maker.stream);
  }

  /// The same where the shard hands nothing on.
  OwnedTensor forward_alone(const Tensor& h0) const {
    OwnedTensor ht = make_state();
    forward_alone(h0, ht);
    return ht;
  }
  void forward_alone(const Tensor& h0, const Tensor& ht) const {
    attention_forward(inputs(), chunks, h0, ht, o, maker.stream);
  }
  OwnedTensor backward_alone(const Tensor& h0, const Tensor& dht) const {
    OwnedTensor dh0 = make_state();
    backward_alone(h0, dht, dh0);
    return dh0;
  }
  void backward_alone(const Tensor& h0, const Tensor& dht, const Tensor& dh0) const {
    attention_backward(inputs(), chunks, dchunks, h0, dout, dht, dh0, {dq, dk, dv, dgk, dgv}, maker.stream);
  }

  /// Every output that this gate kind has, by name.
  std::vector<std::pair<const char*, Tensor>> outputs() const {
    std::vector<std::pair<const char*, Tensor>> all{{"o", o}, {"dq", dq}, {"dk", dk}, {"dv", dv}};
    if (dgk.tensor.defined()) all.emplace_back("dgk", dgk);
    if (dgv.tensor.defined()) all.emplace_back("dgv", dgv);
    return all;
  }
};

/// Tokens [first, last) of every row of x, which holds `tokens` of them.
template <class T>
std::vector<T> slice(const std::vector<T>& x, int64_t B, int64_t tokens, int64_t first, int64_t last) {
  std::vector<T> part;
  const int64_t row = tokens > 0 ? static_cast<int64_t>(x.size()) / (B * tokens) : 0;
  for (int64_t b = 0; b < B; ++b) {
    const auto from = x.begin() + (b * tokens + first) * row;
    part.insert(part.end(), from, from + (last - first) * row);
  }
  return part;
}

/// The reverse of slice: puts a shard's tokens into the whole.
void put(const Maker& maker, const Tensor& part, int64_t first, int64_t tokens, std::vector<double>& whole) {
  if (part.numel() == 0) return;
  const int64_t B = part.dim(0), count = part.dim(1), row = part.numel() / (B * count);
  const std::vector<double> from = maker.to_vector(part);
  whole.resize(static_cast<size_t>(B * tokens * row), kNan);
  for (int64_t b = 0; b < B; ++b) {
    std::copy_n(from.begin() + b * count * row, count * row, whole.begin() + (b * tokens + first) * row);
  }
}

/// Numbers the (shard, head) pair of each element; one group without cuts.
struct Groups {
  const AttentionShape& shape;
  const std::vector<int64_t>& cuts;
  int64_t count() const { return cuts.empty() ? 1 : static_cast<int64_t>(cuts.size()) * shape.H; }
  int64_t of(int64_t index, int64_t size, bool is_state) const {
    if (cuts.empty()) return 0;
    if (is_state) return index / (shape.K * shape.V) % shape.H;
    const int64_t row = size / (shape.B * shape.T * shape.H), t = index / (row * shape.H) % shape.T;
    const int64_t shard = std::upper_bound(cuts.begin(), cuts.end(), t) - cuts.begin() - 1;
    return shard * shape.H + index / row % shape.H;
  }
};

}  // namespace

double tolerance(DType dtype, const std::string& name) {
  if (dtype == DType::kBFloat16) return name == "dgk" || name == "dgv" ? 1e-2 : 5e-3;
  return dtype == DType::kFloat64 ? 1e-12 : 1e-5;
}

AttentionProblem rounded(AttentionProblem p) {
  for (auto member : {&AttentionProblem::q, &AttentionProblem::k, &AttentionProblem::v, &AttentionProblem::dout}) {
    for (double& x : p.*member) x = static_cast<double>(BFloat16(x));
  }
  for (auto member : {&AttentionProblem::gk, &AttentionProblem::gv, &AttentionProblem::h0, &AttentionProblem::dht}) {
    for (double& x : p.*member) x = static_cast<float>(x);
  }
  return p;
}

AttentionProblem take_tokens(const AttentionProblem& p, int64_t first, int64_t last) {
  const int64_t B = p.shape.B, T = p.shape.T;
  AttentionProblem part = p;
  part.shape.T = last - first;
  for (auto member : {&AttentionProblem::q, &AttentionProblem::k, &AttentionProblem::v, &AttentionProblem::dout}) {
    part.*member = slice(p.*member, B, T, first, last);
  }
  if (p.shape.gate != GateKind::kFixed) part.gk = slice(p.gk, B, T, first, last);
  part.gv = slice(p.gv, B, T, first, last);
  part.starts = slice(p.starts, B, T, first, last);
  return part;
}

AttentionResult run_operator(const AttentionProblem& p, DType dtype, std::vector<int64_t> cuts, const Stream& stream) {
  if (cuts.empty()) cuts = {0, p.shape.T};
  const Maker maker(stream, dtype);
  std::vector<Shard> shards;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) shards.emplace_back(take_tokens(p, cuts[i], cuts[i + 1]), maker);
  OwnedTensor state = maker.make(p.h0, p.shape.state(), maker.number);
  OwnedTensor dstate = maker.make(p.dht, p.shape.state(), maker.number);
  if (shards.size() == 1) {
    OwnedTensor h0 = std::move(state);
    state = shards[0].forward_alone(h0);
    dstate = shards[0].backward_alone(h0, dstate);
  } else {
    for (const Shard& shard : shards) {
      OwnedTensor ht = shard.make_state();
      shard.forward(state, ht);
      state = std::move(ht);
    }
    for (size_t i = shards.size(); i-- > 0;) {
      OwnedTensor dh0 = shards[i].make_state();
      shards[i].backward(dstate, dh0);
      dstate = std::move(dh0);
    }
  }
  AttentionResult result;
  result["ht"] = maker.to_vector(state);
  result["dh0"] = maker.to_vector(dstate);
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const auto& [name, x] : shards[i].outputs()) put(maker, x, cuts[i], p.shape.T, result[name]);
  }
  return result;
}

AttentionResult run_without_ends(const AttentionProblem& p, DType dtype, Ends ends, const Stream& stream) {
  const Maker maker(stream, dtype);
  const Shard shard(p, maker);
  const auto state = [&](const std::vector<double>& x) {
    return ends.begins ? maker.make(x, p.shape.state(), maker.number) : OwnedTensor{};
  };
  const OwnedTensor h0 = state(p.h0), dht = state(p.dht), dh0 = ends.dh0 ? shard.make_state() : OwnedTensor{};
  shard.forward_alone(h0, Tensor{});
  if (ends.again) attention_states(shard.inputs(), shard.chunks, h0, Tensor{}, stream);
  shard.backward_alone(h0, dht, dh0);
  AttentionResult result;
  if (ends.dh0) result["dh0"] = maker.to_vector(dh0);
  for (const auto& [name, x] : shard.outputs()) result[name] = maker.to_vector(x);
  return result;
}

void expect_same_without_ends(AttentionProblem p, DType dtype, const Stream& stream) {
  for (const bool begins : {true, false}) {
    if (!begins) std::fill(p.h0.begin(), p.h0.end(), 0), std::fill(p.dht.begin(), p.dht.end(), 0);
    const AttentionResult all = run_operator(p, dtype, {}, stream);
    for (const bool dh0 : {false, true}) {
      for (const bool again : {false, true}) {
        for (const auto& [name, x] : run_without_ends(p, dtype, {begins, dh0, again}, stream)) {
          EXPECT_TRUE(x == all.at(name)) << name << ", begins " << begins << ", dh0 " << dh0 << ", again " << again;
        }
      }
    }
  }
}

AttentionResult run_shard(const AttentionProblem& p, DType dtype, const Cross& cross, const Stream& stream,
                          const std::function<void(const Tensor& starts)>& change) {
  const Maker maker(stream, dtype);
  const Shard shard(p, maker);
  const OwnedTensor h0 = maker.make(p.h0, p.shape.state(), maker.number), ht = shard.make_state();
  const OwnedTensor dht = maker.make(p.dht, p.shape.state(), maker.number), dh0 = shard.make_state();
  const auto run = [&] {
    shard.forward(h0, ht, cross);
    shard.backward(dht, dh0, cross);
  };
  run();
  if (change) {
    const cuda::Graph graph(stream, run);
    change(shard.starts);
    graph.launch(stream);
  }
  AttentionResult result{{"ht", maker.to_vector(ht)}, {"dh0", maker.to_vector(dh0)}};
  for (const auto& [name, x] : shard.outputs()) result[name] = maker.to_vector(x);
  return result;
}

AttentionResult run_states_at(const AttentionProblem& p, DType dtype, int64_t token, const Stream& stream) {
  const Maker maker(stream, dtype);
  const Shard shard(p, maker);
  const Shape state = p.shape.state();
  const OwnedTensor h0 = maker.make(p.h0, state, maker.number);
  shard.forward_alone(h0);
  shard.backward_alone(h0, maker.make(p.dht, state, maker.number));
  const OwnedTensor h = maker.make_nan(state, maker.number), dh = maker.make_nan(state, maker.number);
  state_at(shard.inputs(), shard.chunks, token, h, stream);
  state_gradient_at(shard.inputs(), shard.dchunks, shard.dout, token, dh, stream);
  return {{"h", maker.to_vector(h)}, {"dh", maker.to_vector(dh)}};
}

double relative_error(const AttentionProblem& p, const AttentionResult& ref, const AttentionResult& x, DType dtype,
                      const std::string& name, const std::vector<int64_t>& cuts) {
  const std::vector<double>&a = ref.at(name), &b = x.at(name);
  if (a.size() != b.size()) return kNan;
  const Groups groups{p.shape, cuts};
  const auto size = static_cast<int64_t>(a.size());
  const bool is_state = name == "ht" || name == "dh0";
  std::vector<double> error(groups.count()), norm(groups.count()), products(groups.count()), count(groups.count());
  for (int64_t i = 0; i < size; ++i) {
    const int64_t group = groups.of(i, size, is_state);
    error[group] += (a[i] - b[i]) * (a[i] - b[i]);
    norm[group] += a[i] * a[i];
    count[group] += 1;
  }
  if (name == "dgk" || name == "dgv") {
    const std::vector<double>& keys = name == "dgk" ? p.k : p.v;
    const std::vector<double>& dkeys = ref.at(name == "dgk" ? "dk" : "dv");
    const auto num_keys = static_cast<int64_t>(keys.size());
    for (int64_t i = 0; i < num_keys; ++i) products[groups.of(i, num_keys, false)] += std::pow(keys[i] * dkeys[i], 2);
  }
  const double smallest = dtype == DType::kFloat64 ? DBL_MIN : FLT_MIN;
  double worst = 0;
  for (size_t group = 0; group < error.size(); ++group) {
    double scale = std::sqrt(std::max(norm[group], products[group]));
    if (scale > 0) scale = std::max(scale, std::sqrt(count[group]) * smallest);
    const double relative = std::sqrt(error[group]) / (scale > 0 ? scale : 1.0);
    if (std::isnan(relative)) return kNan;
    worst = std::max(worst, relative);
  }
  return worst;
}

void expect_close(const AttentionProblem& p, const AttentionResult& ref, const AttentionResult& x, DType dtype,
                  const std::vector<int64_t>& cuts) {
  for (const auto& [name, tensor] : ref) {
    ASSERT_TRUE(x.contains(name)) << name;
    EXPECT_LE(relative_error(p, ref, x, dtype, name, cuts), tolerance(dtype, name)) << name;
  }
}

}  // namespace baton::test
