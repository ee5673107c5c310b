// What the kernels of linear attention are given, and their launchers. Shapes and words as in
// kernels/linear_attention.h, which .cu files cannot include (nvcc does not take the checks of fmt);
// linear_attention.cpp asserts that both agree.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace baton::cuda::attention {

constexpr int kChunk = 64;
enum class Gate { kNone, kFixed, kScalar, kVector, kBilinear };

/// q, k, v, dout and their gradients are all bfloat16 or all float32; everything else is float32. Null where absent.
struct Arguments {
  int64_t B, T, H, K, V, N;
  Gate gate;
  bool warpgroups;  // the code for sm_90a is what runs
  float scale;
  const void *q, *k, *v, *dout;
  const float *gk, *gv;
  const uint8_t* starts;
  float *state, *dstate;  // [B, H, N + 1, K, V]
  float *decay_k, *decay_v;
  void *o, *dq, *dk, *dv;
  float *dgk, *dgv;
  // Where spans have several chunks: walks and the pass of the keys make the gradients of learned gates of part after
  // part, so many batches from the first and so many chunks; else these are all.
  int64_t first_batch, batches, first_chunk, chunks;
  void *chunk_state, *chunk_dstate;  // bfloat16 [batches, H, chunks, V, K]: states entering chunks and their gradients
                                     // leaving them
};

/// Blocks of a kernel that go over `items`: as many as run at once, `on_each` on a multiprocessor, and not more than
/// items.
inline cudaError_t persistent_blocks(int64_t items, int on_each, unsigned* blocks) {
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  *blocks = static_cast<unsigned>(std::min<int64_t>(items, int64_t{on_each} * multiprocessors));
  return error;
}

/// What walks leave for the gradient of scalar gates (linear_attention_walk_sums.cuh): of a walk's A = segments + 1
/// anchors and of tokens.
struct ScalarSums {
  __nv_bfloat16* states;          // [B, H, walks, A, K V]: at anchors, as they lie in registers
  float* anchors;                 // [B, H, walks, A, K / 16]: these times their gradients, in parts
  float *queries, *keys, *pairs;  // [B, H, N, C]: q dq and k dk from states; what pairs of a chunk's tokens add
  int segments;
};

/// A walk over the chunks of spans (linear_attention_walk.cuh, which has the equations). Activations are bfloat16.
struct Walk {
  const void *own, *update, *read;  // [B, T, H, own or other side's channels], or as Decayed's; read null: no out
  const void* dk_read;              // v where dk is made, too, with dv (own is dout, update q, read k); or null
  int64_t own_dim;
  int cluster;  // neighbouring blocks that share what is not their own (linear_attention_shared.cuh); 0: they cannot
  bool own_is_keys, reversed;
  bool carry;  // from no state; writes the span's own state, and its decays to Arguments::decay_k
  int64_t first_span, num_walks, spans_per_walk;  // walks of a sequence and head; first_span: of the first
  int64_t num_spans, chunks_per_span;
  float* states;       // [B, H, num_spans + 1, K, V]
  bool whole;          // the walk goes over all of the shard, from `first`, not from what is in `states`
  const float* first;  // [B, H, K, V], or null: zeros
  float* last;         // [B, H, K, V]: where a whole shard's end goes, then put into `states` as is `first`; or null
  const __nv_bfloat16 *scores, *rest;  // as Decayed's, and
  const float* chunk_decay;            // [B, H, N, K]: where decays have channels
  void *out, *dk_out;                  // [B, T, H, own_dim]
  void* chunk_states;  // [batches, H, chunks, own_dim, other]: the states entering chunks, in the walk's order;
                       // or null
  ScalarSums sums;     // of walks that make dq, and dv and dk at once; or nulls
};

/// What linear_attention_scores.cu makes of q, k and gates of key channels. A tile is 64 tokens by 64 numbers as it
/// lies in shared memory (linear_attention_tile.cuh); tokens beyond the shard are zeros.
struct Decayed {
  void *q, *k;            // tiles [B, H, N, K / 64]: scale q through, k after
  __nv_bfloat16* scores;  // tiles [B, H, N]: scale q_i k_j D_ij, rows i; zeros above the diagonal
  __nv_bfloat16* rest;    // the same, what rounding left of scores, where chunks are mild; or null
  float* decay;           // [B, H, N, K] of whole chunks
};

/// Which tensors a pass over chunks makes: o; dq, dk and dgk; dv and dgv; as kKeys, from chunk_state and chunk_dstate.
enum class Pass { kOutput, kKeys, kValues, kSpanKeys };

/// Part of a chunk for state_at: tokens [first, first + n) composed with `from` [B, H, K, V], `to` of the same shape.
struct Part {
  int64_t first = 0, n = 0;
  const float* from = nullptr;  // of batch and head 0; the next ones follow after from_stride numbers
  int64_t from_stride = 0;
  float* to = nullptr;
};

// Tensor cores: bfloat16, K and V multiples of 8, pointers aligned to 16 bytes. `.._fit` says whether these sizes fit
// into the shared memory that the device gives a block.
bool carry_fits(const Arguments& a, int64_t shared_bytes);
bool output_fit(const Arguments& a, int64_t shared_bytes);
bool keys_fit(const Arguments& a, int64_t shared_bytes);
bool values_fit(const Arguments& a, int64_t shared_bytes);
cudaError_t launch_carry(const Arguments& a, bool backward, cudaStream_t stream);
cudaError_t launch_output(const Arguments& a, cudaStream_t stream);
cudaError_t launch_keys(const Arguments& a, cudaStream_t stream);
cudaError_t launch_span_keys(const Arguments& a, cudaStream_t stream);
cudaError_t launch_values(const Arguments& a, cudaStream_t stream);

cudaError_t launch_number_walk(const Arguments& a, const Walk& w, cudaStream_t stream);
/// Walks with sums; and, after those of dq and of dv and dk, dgk from these.
cudaError_t launch_sum_walk(const Arguments& a, const Walk& w, cudaStream_t stream);
cudaError_t launch_scalar_gradient(const Arguments& a, const Walk& w, cudaStream_t stream);
cudaError_t launch_channel_walk(const Arguments& a, const Walk& w, cudaStream_t stream);
/// Forward, from q, k and gk: no scores and decays of chunks are taken.
cudaError_t launch_fused_walk(const Arguments& a, const Walk& w, cudaStream_t stream);
cudaError_t launch_scores(const Arguments& a, const Decayed& to, cudaStream_t stream);
/// The same, but meaningless for chunks whose `to.decay` is not mild on every channel.
cudaError_t launch_mild_scores(const Arguments& a, const Decayed& to, cudaStream_t stream);

// Plain float32 arithmetic, either dtype, any K and V.
cudaError_t launch_general_carry(const Arguments& a, bool bfloat16, bool backward, const Part* part,
                                 cudaStream_t stream);
cudaError_t launch_general_pass(const Arguments& a, bool bfloat16, Pass pass, cudaStream_t stream);

/// Composes `count` of a.N spans: forward the first ones from first = h0, backward the last ones from first = dht
/// (null: zeros); where they are all, into last = ht or dh0 (or null).
cudaError_t launch_advance(const Arguments& a, bool backward, int64_t count, const float* first, float* last,
                           cudaStream_t stream);

}  // namespace baton::cuda::attention
