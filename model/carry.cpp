#include "model/carry.h"

#include <algorithm>
#include <cmath>

namespace baton {
namespace {

/// The parts of a message. Decays that it lacks are undefined.
Carry parts(const AttentionShape& s, const Tensor& message) {
  Carry c;
  int64_t taken = 0;
  const auto take = [&](const Shape& shape) {
    const Tensor part = message.rows(taken, shape.numel()).view(shape);
    taken += shape.numel();
    return part;
  };
  c.state = take(s.state());
  if (!has_learned_decay(s.gate)) return c;
  c.decay_k = take({s.B, s.H, s.K});
  if (s.has_decay_v()) c.decay_v = take({s.B, s.H, s.V});
  return c;
}

/// starts: uint8 [B, T], on the host.
bool starts_in_row(const Tensor& starts, int64_t b) {
  const uint8_t* row = starts.as<uint8_t>() + b * starts.dim(1);
  return std::any_of(row, row + starts.dim(1), [](uint8_t x) { return x != 0; });
}

/// What is the same in both directions.
ShardCarry composing(const AttentionInputs& in, const FixedDecays& fixed, const Stream& stream) {
  ShardCarry shard;
  shard.numel = carry_numel(in.shape);
  shard.rows = in.shape.B * in.shape.H;
  const bool learned = has_learned_decay(in.shape.gate);
  shard.widths = {in.shape.K * in.shape.V, learned ? in.shape.K : 0, in.shape.has_decay_v() ? in.shape.V : 0};
  shard.forgets = fixed.forgets;
  shard.compose = [&](const Stretch& first, const Stretch& second, const Tensor& out) {
    const Range rows = first.rows.size() > 0 ? first.rows : Range{0, in.shape.B * in.shape.H};
    AttentionShape s = in.shape;  // of these rows
    s.B = 1, s.H = rows.size();
    Carry later = parts(s, second.carry);
    if (!later.decay_k.defined()) {
      fixed_decay(in.gk, fixed.tokens, second.ranks.first, second.ranks.last, fixed.scratch, stream);
      later.decay_k = fixed.scratch.view({in.shape.B * in.shape.H, s.K}).rows(rows.first, s.H).view({1, s.H, s.K});
    }
    compose(parts(s, first.carry), later, parts(s, out), stream);
  };
  return shard;
}

}  // namespace

bool has_learned_decay(GateKind gate) { return gate != GateKind::kNone && gate != GateKind::kFixed; }

int64_t carry_numel(const AttentionShape& s) {
  const int64_t decays = has_learned_decay(s.gate) ? s.K + (s.has_decay_v() ? s.V : 0) : 0;
  return s.B * s.H * (s.K * s.V + decays);
}

ShardCarry forward_carry(const AttentionInputs& in, const AttentionChunks& chunks, const FixedDecays& fixed,
                         const Stream& stream) {
  ShardCarry shard = composing(in, fixed, stream);
  shard.advance = [&](const Tensor& entering, const Tensor& leaving) {
    advance_forward(in, chunks, entering, leaving, stream);
  };
  shard.own = [&](const Tensor& carry) { shard_carry_forward(in.shape, chunks, parts(in.shape, carry), stream); };
  return shard;
}

ShardCarry backward_carry(const AttentionInputs& in, const AttentionChunks& chunks, const AttentionChunks& dchunks,
                          const FixedDecays& fixed, const Stream& stream) {
  ShardCarry shard = composing(in, fixed, stream);
  shard.advance = [&](const Tensor& entering, const Tensor& leaving) {
    advance_backward(in, chunks, dchunks, entering, leaving, stream);
  };
  shard.own = [&](const Tensor& carry) {
    shard_carry_backward(in.shape, chunks, dchunks, parts(in.shape, carry), stream);
  };
  return shard;
}

bool starts_in_every_row(const Tensor& starts) {
  for (int64_t b = 0; b < starts.dim(0); ++b)
    if (!starts_in_row(starts, b)) return false;
  return true;
}

bool decays_forget(const AttentionShape& s, DType number, double log_decay, double early_send) {
  // exp of these is 0 however it rounds: half the smallest number is exp(-104), in double exp(-745.2).
  const double zero = number == DType::kFloat64 ? -746 : -105;
  const auto tokens = static_cast<double>(s.T), first_span = static_cast<double>(std::min(s.T, s.span));
  return log_decay * first_span <= zero || (early_send > 0 && log_decay * tokens <= std::log(early_send));
}

void gather_tokens_of_shards(const Tensor& starts, Group& group, const Tensor& all) {
  const Tensor mine = all.rows(group.rank(), 1);
  for (int64_t b = 0; b < starts.dim(0); ++b) mine.as<int64_t>()[b] = starts_in_row(starts, b) ? -1 : starts.dim(1);
  group.all_gather(mine, all, Stream{});
}

}  // namespace baton
