// Decays inside one chunk, on the key or on the value side.
//
// The decay over an aligned stretch of m = 1, 2, 4, .. 64 tokens is exp of the sum of its gates: the nodes of a binary
// tree. Halving: tokens i > j part at the one level m where bit m of i is set, of j is not, and all higher bits agree;
// the decay between them is through[i] * after[j], with through[i] from the middle through i and after[j] from after j
// to the middle. Both grow from level to level by one product with a node. So no exponent is positive, none is a
// difference of sums, -inf is an exact 0, and a decay is a product of at most twelve exponentials, each of a plain sum.
#pragma once

#include "kernels/cpu/linear_attention_gemm.h"
#include "kernels/cpu/linear_attention_tile.h"

namespace baton::attention {

/// How many numbers a token's decay is: none, one, or one a channel.
enum class DecayKind { kNone, kNumber, kChannels };

inline DecayKind key_decay(GateKind gate) {
  return gate == GateKind::kVector || gate == GateKind::kBilinear ? DecayKind::kChannels : DecayKind::kNumber;
}
inline DecayKind value_decay(GateKind gate) {
  return gate == GateKind::kBilinear ? DecayKind::kChannels : DecayKind::kNone;
}

template <class Real>
class Decay {
 public:
  Decay(DecayKind kind, int64_t dim, Scratch<Real>& scratch)
      : kind_(kind), dim_(dim), width_(kind == DecayKind::kChannels ? padded<Real>(dim) : 1) {
    if (kind == DecayKind::kNone) return;
    gates_ = scratch.take(2 * kChunk * width_);
    node_ = scratch.take(2 * kChunk * width_);
    through_ = scratch.take(kChunk * width_);
    after_ = scratch.take(kChunk * width_);
  }

  DecayKind kind() const { return kind_; }
  bool any() const { return kind_ != DecayKind::kNone; }
  bool channels() const { return kind_ == DecayKind::kChannels; }
  int64_t width() const { return width_; }
  /// [n, width] each. After `climb` they reach from the chunk's start through t, and from after t to the chunk's end.
  const Real* through() const { return through_; }
  const Real* after() const { return after_; }
  const Real* gates() const { return gates_; }
  /// Decay of the whole stretch, [width].
  const Real* whole() const { return node_ + (2 * rows_ - 2) * width_; }

  /// Reads the gates of a stretch (the tensor is as in AttentionInputs) and makes the tree.
  void read(const Tensor& gates, const AttentionInputs& in, const Stretch& at) {
    if (!any()) return;
    rows_ = tree_rows(at.n);
    read_gates(gates, in, at);
    Real* level = gates_;
    for (int64_t count = rows_; count > 1; count /= 2) {
      Real* sums = level + count * width_;
      for (int64_t i = 0; i < count / 2; ++i) {
        const Real* pair = level + 2 * i * width_;
        Real* sum = sums + i * width_;
        if (width_ == 1) sum[0] = pair[0] + pair[1];
        for (int64_t c = 0; channels() && c < width_; c += kLanes<Real>) {
          store(sum + c, load(pair + c) + load(pair + width_ + c));
        }
      }
      level = sums;
    }
    exp_all((2 * rows_ - 1) * width_, gates_, node_);
  }

  /// Visits the levels m = 1, 2, 4, .. below the rows: body(m) sees `through` of tokens with bit m set and `after` of
  /// those without. Leaves both reaching over the whole stretch.
  template <class Body>
  void climb(Body&& body) {
    if (!any()) return;
    std::copy_n(node_, rows_ * width_, through_);
    std::fill(after_, after_ + rows_ * width_, Real{1});
    const Real* level = node_;
    for (int64_t m = 1; m < rows_; m *= 2) {
      body(m);
      for (int64_t first = 0; first < rows_; first += 2 * m) {
        const Real* pair = level + first / m * width_;
        scale_by(m, pair + width_, after_ + first * width_);
        scale_by(m, pair, through_ + (first + m) * width_);
      }
      level += rows_ / m * width_;
    }
  }
  void climb() {
    climb([](int64_t) {});
  }

  /// weight [kChunk, kChunk]: the decay between tokens i > j; 0 for i <= j. A number a token, or none. Ends as climb.
  void weights(int64_t n, Real* weight) {
    for (int64_t i = 0; i < tile_rows<Real>(n); ++i) std::fill(weight + i * kChunk, weight + (i + 1) * kChunk, Real{0});
    climb([&](int64_t m) {
      for (int64_t i = 0; i < n; ++i) {
        if ((i & m) == 0) continue;
        const int64_t left = (i / m - 1) * m;
        for (int64_t j = left; j < left + m; ++j) weight[i * kChunk + j] = through_[i] * after_[j];
      }
    });
  }

 private:
  /// Multiplies `count` tokens by one decay.
  void scale_by(int64_t count, const Real* decay, Real* x) const {
    if (width_ == 1) {
      for (int64_t t = 0; t < count; ++t) x[t] *= decay[0];
      return;
    }
    for (int64_t c = 0; c < width_; c += kLanes<Real>) {
      const Vec<Real> factor = load(decay + c);
      for (Real *p = x + c, *end = p + count * width_; p != end; p += width_) store(p, load(p) * factor);
    }
  }

  void read_gates(const Tensor& gates, const AttentionInputs& in, const Stretch& at) {
    const AttentionShape& s = in.shape;
    if (channels()) {
      load_tile<Real>(gates, s, at, dim_, Real{1}, gates_);
    } else {
      std::fill(gates_, gates_ + rows_, Real{0});
      for (int64_t t = 0; t < at.n && gates.defined(); ++t) {
        gates_[t] = s.gate == GateKind::kFixed ? gates.as<Real>()[at.head] : token_row<Real>(gates, s, at, 1)[t * s.H];
      }
    }
    if (!in.starts.defined()) return;
    const uint8_t* starts = in.starts.as<uint8_t>() + at.batch * s.T + at.first;
    for (int64_t t = 0; t < at.n; ++t) {
      if (starts[t] == 0) continue;
      std::fill_n(gates_ + t * width_, width_, -std::numeric_limits<Real>::infinity());
    }
  }

  DecayKind kind_;
  int64_t dim_, width_, rows_ = 0;
  Real* gates_ = nullptr;  // [2 rows - 1, width]: gates, then sums of 2, of 4, ..
  Real* node_ = nullptr;   // their exponentials
  Real* through_ = nullptr;
  Real* after_ = nullptr;
};

}  // namespace baton::attention
