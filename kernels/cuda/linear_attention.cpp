// Linear attention on CUDA: which kernels run a stage.
//   spans of several chunks: walks (linear_attention_walk.cuh), bfloat16 alone
//   spans of one chunk: bfloat16, K and V multiples of 8 and aligned tensors: tensor cores;  else, and float32: plain
//   arithmetic
#include "kernels/linear_attention.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/linear_attention_stage.h"

namespace baton::cuda {
namespace {

using attention::Arguments;
using attention::Part;
using attention::Pass;

void launch_carry(Stage& stage, bool backward) {
  const Arguments& a = stage.arguments();
  if (stage.walks()) return stage.launch_carries(backward, stage.shape().num_spans());
  stage.launch(
      attention::carry_fits, [&] { return attention::launch_carry(a, backward, stage.queue()); },
      [&] { return attention::launch_general_carry(a, stage.bfloat16(), backward, nullptr, stage.queue()); });
}

void launch_advance(Stage& stage, bool backward, int64_t num_spans, const float* first, float* last) {
  Arguments a = stage.arguments();
  a.N = stage.shape().num_spans();
  check_launch(attention::launch_advance(a, backward, num_spans, first, last, stage.queue()), "advance");
}

/// Goes chunk by chunk from the stored state at the start of the token's span (backward: at its end).
void compose_part(Stage& stage, bool backward, int64_t span, const float* states, int64_t token, const Tensor& to) {
  const Arguments& a = stage.arguments();
  CHECK(token >= 0 && token <= a.T, "token {} is outside [0, {}]", token, a.T);
  const int64_t num_spans = (a.T + span - 1) / span, first = token / span, size = a.K * a.V;
  const int64_t from = backward ? std::min(first + 1, num_spans) : first;
  int64_t at = std::min(from * span, a.T);
  Part part;
  part.from = states + from * size;
  part.from_stride = (num_spans + 1) * size;
  part.to = stage.number(to, backward ? "dh" : "h", Shape{a.B, a.H, a.K, a.V});
  do {
    const int64_t edge = backward ? (at - 1) / kChunk * kChunk : (at / kChunk + 1) * kChunk;
    const int64_t next = backward ? std::max(edge, token) : std::min(edge, token);
    part.first = std::min(at, next);
    part.n = std::max(at, next) - part.first;
    check_launch(attention::launch_general_carry(a, stage.bfloat16(), backward, &part, stage.queue()), "compose_part");
    part.from = part.to, part.from_stride = size;
    at = next;
  } while (at != token);
}

/// Where walks over a whole shard begin, and where the reversed one ends; other walks begin from states in memory.
struct Ends {
  bool whole_forward = false, whole_reversed = false;
  const float* h0 = nullptr;
  const float* dht = nullptr;
  float* dh0 = nullptr;
};

/// Every gradient by walks; those of learned gates, with dq and dk, by a pass over chunks from the walks' states,
/// unless gates are scalar and one walk makes dv and dk.
void walk_gradients(Stage& stage, const Ends& ends) {
  Arguments& a = stage.arguments();
  const bool at_once = walks_make_gradients_at_once(stage.shape());
  attention::Walk dv = stage.walk(false, true, Stage::Made::kOutput);
  dv.out = a.dv;
  dv.whole = ends.whole_reversed, dv.first = ends.dht, dv.last = ends.dh0;
  if (stage.learned() && !at_once) {
    attention::Walk states = stage.walk(false, false, Stage::Made::kChunkStates);
    states.chunk_states = a.chunk_state;
    states.whole = ends.whole_forward, states.first = ends.h0;
    dv.chunk_states = a.chunk_dstate;
    return stage.for_parts([&](int64_t walk, int64_t walks) {
      for (attention::Walk* w : {&states, &dv}) {
        w->first_span = walk * w->spans_per_walk, w->num_walks = walks;
        stage.launch(*w);
      }
      check_launch(attention::launch_span_keys(a, stage.queue()), "attention_gradients");
    });
  }
  attention::Walk dq = stage.walk(true, false, Stage::Made::kOutput), dk = stage.walk(true, true, Stage::Made::kOutput);
  dq.out = a.dq, dk.out = a.dk;
  dq.whole = ends.whole_forward, dq.first = ends.h0;
  if (at_once) dv.dk_read = dk.read, dv.dk_out = dk.out;
  if (stage.learned()) dq.sums = dv.sums = stage.sums();
  stage.launch(dq);
  stage.launch(dv);
  if (!at_once) stage.launch(dk);
  if (stage.learned()) check_launch(attention::launch_scalar_gradient(a, dq, stage.queue()), "attention_gradients");
}

/// Takes the tensors of attention_gradients.
void take_gradients(Stage& stage, const AttentionInputs& in, const AttentionChunks& chunks,
                    const AttentionChunks& dchunks, const Tensor& dout, const AttentionGradients& out) {
  Arguments& a = stage.arguments();
  a.state = stage.states(chunks.state, "states");
  a.dstate = stage.states(dchunks.state, "state gradients");
  a.dout = stage.activation(dout, "dout", stage.values());
  a.dq = stage.activation(out.dq, "dq", stage.keys());
  a.dk = stage.activation(out.dk, "dk", stage.keys());
  a.dv = stage.activation(out.dv, "dv", stage.values());
  const GateKind gate = in.shape.gate;
  a.dgk = stage.optional(out.dgk, "dgk", gate != GateKind::kNone && gate != GateKind::kFixed, in.gk.shape);
  a.dgv = stage.optional(out.dgv, "dgv", gate == GateKind::kBilinear, in.gv.shape);
  stage.work(chunks);
}

}  // namespace

void carry_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Stream& stream) {
  Stage stage(in, stream, "carry_forward");
  stage.decays(chunks);
  stage.arguments().state = stage.states(chunks.state, "states");
  stage.work(chunks);
  if (stage.takes_scores()) stage.launch_scores();
  launch_carry(stage, false);
}

void advance_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                     const Stream& stream) {
  Stage stage(in, stream, "advance_forward");
  stage.decays(chunks);
  stage.arguments().state = stage.states(chunks.state, "states");
  const float* first = stage.end(h0, "h0");
  float* last = stage.end(ht, "ht");
  launch_advance(stage, false, in.shape.num_spans(), first, last);
}

void output_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& o, const Stream& stream) {
  Stage stage(in, stream, "output_forward");
  Arguments& a = stage.arguments();
  a.state = stage.states(chunks.state, "states");
  a.o = stage.activation(o, "o", stage.values());
  if (stage.walks()) {
    stage.work(chunks);
    attention::Walk w = stage.walk(false, false, Stage::Made::kOutput);
    w.out = a.o;
    return stage.launch(w);
  }
  stage.launch(
      attention::output_fit, [&] { return attention::launch_output(a, stage.queue()); },
      [&] { return attention::launch_general_pass(a, stage.bfloat16(), Pass::kOutput, stage.queue()); });
}

void carry_backward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& dout,
                    const AttentionChunks& dchunks, const Stream& stream) {
  Stage stage(in, stream, "carry_backward");
  stage.decays(chunks);
  stage.arguments().dstate = stage.states(dchunks.state, "state gradients");
  stage.arguments().dout = stage.activation(dout, "dout", stage.values());
  stage.work(chunks);
  launch_carry(stage, true);
}

void advance_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                      const Tensor& dht, const Tensor& dh0, const Stream& stream) {
  Stage stage(in, stream, "advance_backward");
  stage.decays(chunks);
  stage.arguments().dstate = stage.states(dchunks.state, "state gradients");
  const float* first = stage.end(dht, "dht");
  float* last = stage.end(dh0, "dh0");
  launch_advance(stage, true, in.shape.num_spans(), first, last);
}

void attention_gradients(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                         const Tensor& dout, const AttentionGradients& out, const Stream& stream) {
  Stage stage(in, stream, "attention_gradients");
  take_gradients(stage, in, chunks, dchunks, dout, out);
  if (stage.walks()) return walk_gradients(stage, {});
  const Arguments& a = stage.arguments();
  stage.launch(
      attention::keys_fit, [&] { return attention::launch_keys(a, stage.queue()); },
      [&] { return attention::launch_general_pass(a, stage.bfloat16(), Pass::kKeys, stage.queue()); });
  stage.launch(
      attention::values_fit, [&] { return attention::launch_values(a, stage.queue()); },
      [&] { return attention::launch_general_pass(a, stage.bfloat16(), Pass::kValues, stage.queue()); });
}

void attention_forward(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                       const Tensor& o, const Stream& stream) {
  Stage stage(in, stream, "attention_forward");
  if (!stage.walk_ends(ht)) {
    cuda::attention_states(in, chunks, h0, ht, stream);
    return cuda::output_forward(in, chunks, o, stream);
  }
  stage.arguments().state = stage.states(chunks.state, "states");
  stage.work(chunks);
  attention::Walk w = stage.walk(false, false, Stage::Made::kOutput);
  w.out = stage.activation(o, "o", stage.values());
  w.whole = true, w.first = stage.end(h0, "h0"), w.last = stage.end(ht, "ht");
  if (stage.takes_scores()) stage.launch_scores();
  stage.launch(w);
}

void attention_states(const AttentionInputs& in, const AttentionChunks& chunks, const Tensor& h0, const Tensor& ht,
                      const Stream& stream) {
  Stage stage(in, stream, "attention_states");
  if (!stage.walks()) {
    cuda::carry_forward(in, chunks, stream);
    return cuda::advance_forward(in, chunks, h0, ht, stream);
  }
  stage.decays(chunks);
  stage.arguments().state = stage.states(chunks.state, "states");
  stage.work(chunks);
  if (stage.takes_scores()) stage.launch_scores();
  if (stage.one_walk() && !ht.defined()) return;
  const int64_t carried = stage.carried_spans(false, ht);
  const float* first = stage.end(h0, "h0");
  float* last = stage.end(ht, "ht");
  stage.launch_carries(false, carried);
  launch_advance(stage, false, carried, first, last);
}

void attention_backward(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                        const Tensor& h0, const Tensor& dout, const Tensor& dht, const Tensor& dh0,
                        const AttentionGradients& out, const Stream& stream) {
  Stage stage(in, stream, "attention_backward");
  if (!stage.walks()) {
    cuda::carry_backward(in, chunks, dout, dchunks, stream);
    cuda::advance_backward(in, chunks, dchunks, dht, dh0, stream);
    return cuda::attention_gradients(in, chunks, dchunks, dout, out, stream);
  }
  take_gradients(stage, in, chunks, dchunks, dout, out);
  stage.decays(chunks);
  Ends ends{stage.one_walk(), stage.walk_ends(dh0), stage.end(h0, "h0"), stage.end(dht, "dht"), stage.end(dh0, "dh0")};
  if (!ends.whole_reversed) {
    const int64_t carried = stage.carried_spans(true, dh0);
    stage.launch_carries(true, carried);
    launch_advance(stage, true, carried, ends.dht, ends.dh0);
    ends.dh0 = nullptr;  // it is there
  }
  walk_gradients(stage, ends);
}

void state_at(const AttentionInputs& in, const AttentionChunks& chunks, int64_t token, const Tensor& h,
              const Stream& stream) {
  Stage stage(in, stream, "state_at");
  compose_part(stage, false, in.shape.span, stage.states(chunks.state, "states"), token, h);
}

void state_gradient_at(const AttentionInputs& in, const AttentionChunks& dchunks, const Tensor& dout, int64_t token,
                       const Tensor& dh, const Stream& stream) {
  Stage stage(in, stream, "state_gradient_at");
  stage.arguments().dout = stage.activation(dout, "dout", stage.values());
  compose_part(stage, true, in.shape.span, stage.states(dchunks.state, "state gradients"), token, dh);
}

}  // namespace baton::cuda
