// The activation table: what a layer keeps from forward to backward, and the scratch that all layers share. Each is one
// list of rows (tensor, shape for B sequences of T tokens), so that laying out, cutting to a shorter shard and the
// printed memory table come from the same place.
#pragma once

#include <vector>

#include "kernels/linear_attention.h"
#include "kernels/norm.h"
#include "runtime/config.h"
#include "runtime/memory.h"

namespace baton {

/// Sizes of one layer, from the configuration.
struct LayerDims {
  int64_t D = 0, H = 0, K = 0, V = 0, F = 0;  // K as projected; the operator sees operator_k()
  int64_t low_rank = 0;
  bool tnl = false, lrpe = false;
  GateKind gate = GateKind::kVector;

  static LayerDims of(const ModelConfig& config, int64_t layer);
  int64_t operator_k() const { return lrpe ? 2 * K : K; }
  /// `dtype`: of q.
  AttentionShape attention(int64_t B, int64_t T, DType dtype) const {
    AttentionShape s{B, T, H, operator_k(), V, gate};
    choose_spans(s, dtype);
    return s;
  }
};

/// Two dtypes of a run: `compute` of what matrix products read (bfloat16 on a GPU), `accum` of what adds up: the
/// residual stream and its gradient, log gates, states, statistics, weights and their gradients. Equal but for
/// bfloat16.
struct Precision {
  DType compute = DType::kFloat32, accum = DType::kFloat32;

  static Precision of(DType dtype) {
    return dtype == DType::kBFloat16 ? Precision{DType::kBFloat16, DType::kFloat32} : Precision{dtype, dtype};
  }
  bool mixed() const { return compute != accum; }
};

/// Kept by each layer. N = B T rows.
struct LayerActivations {
  Tensor x;                   // [N, D] residual stream entering the layer
  Tensor y1, stats1;          // [N, D], [N, 2] after the mixer's norm
  Tensor q_pre, k_pre;        // [N, H K] before silu (tnl)
  Tensor q, k, v;             // [B, T, H, operator_k or V] what the operator reads
  Tensor gk_low, gk_pre, gk;  // [N, low], [N, H K], [B, T, H, K]; scalar: -, [N, H], [B, T, H]
  Tensor gv_low, gv_pre, gv;  // bilinear
  Tensor r;                   // [N, H V] output gate before its activation
  Tensor o, stats_o;          // [B, T, H, V]; [N H, 2] (gla, per head) or [N, 2] (tnl, joint)
  Tensor x_mid;               // [N, D] residual stream between mixer and feed-forward
  Tensor y2, stats2;          // [N, D], [N, 2]
  Tensor a, b;                // [N, F] the two factors of the GLU
};

/// Shared by all layers, sized for the largest.
struct Scratch {
  Tensor normed, gated;                // [N, H V] recomputed in backward
  Tensor hidden;                       // [N, F]
  Tensor dres, dy;                     // [N, D] gradient of the residual stream, and of a norm's output
  Tensor dhidden, da;                  // [N, F]
  Tensor dgated, dr;                   // [N, H V]
  Tensor dq, dk;                       // [N, H operator_k]
  Tensor dv;                           // [N, H V]
  Tensor dgk, dgv, dlow;               // as gk, gv; [N, low]
  Tensor dres_operand, dgate_operand;  // compute copies of dres, and of dgk or dgv; mixed precision only
  Tensor act, dact;                    // [N, H K] silu(q) or silu(k) under LRPE, and its gradient
  AttentionChunks chunks, dchunks;
  Tensor fixed_decay;  // [B, H, operator_k] FixedDecays::scratch; gates that learn nothing
  Tensor leaving;      // [B, H, K, V] where a recomputed forward leaves its state
};

/// Capacity for B sequences of T tokens, from the arena.
LayerActivations make_activations(const LayerDims& dims, int64_t B, int64_t T, Arena& arena, Precision precision);
/// For training also the gradients' scratch. `dims` of every layer.
Scratch make_scratch(const std::vector<LayerDims>& dims, int64_t B, int64_t T, bool training, Arena& arena,
                     Precision precision);

/// The same memory as views for a shorter T (B the same).
LayerActivations cut(const LayerActivations& capacity, const LayerDims& dims, int64_t B, int64_t T);
Scratch cut(const Scratch& capacity, const LayerDims& dims, int64_t B, int64_t T);

/// x as an operand of a matrix product: x itself, or converted into `copy` where precision is mixed.
Tensor as_operand(const Tensor& x, const Tensor& copy, const Stream& stream);

}  // namespace baton
