// The one list of attention shapes that tests and benchmarks run.
#pragma once

#include "kernels/linear_attention.h"

namespace baton {

struct NamedShape {
  const char* name;
  AttentionShape shape;
};

/// Correctness: lengths around a chunk of kChunk tokens and primes, odd dimensions, every gate kind.
inline constexpr NamedShape kTestShapes[] = {
    {"one_token", {2, 1, 3, 8, 12, GateKind::kVector}},
    {"two_tokens", {1, 2, 2, 5, 7, GateKind::kBilinear}},
    {"three_tokens", {1, 3, 2, 16, 16, GateKind::kScalar}},
    {"chunk_less_one", {1, kChunk - 1, 2, 16, 24, GateKind::kVector}},
    {"chunk", {2, kChunk, 2, 16, 16, GateKind::kFixed}},
    {"chunk_and_one", {1, kChunk + 1, 2, 9, 33, GateKind::kVector}},
    {"two_chunks_and_one", {1, 2 * kChunk + 1, 2, 32, 16, GateKind::kBilinear}},
    {"prime_37", {2, 37, 3, 16, 16, GateKind::kNone}},
    {"prime_131", {1, 131, 1, 17, 19, GateKind::kBilinear}},
    {"prime_251_none", {1, 251, 2, 8, 8, GateKind::kNone}},
    {"prime_251_fixed", {1, 251, 2, 32, 64, GateKind::kFixed}},
    {"prime_251_scalar", {1, 251, 2, 13, 48, GateKind::kScalar}},
    {"prime_251_vector", {1, 251, 2, 32, 64, GateKind::kVector}},
    {"wide", {1, 150, 1, 128, 160, GateKind::kVector}},
    {"one_channel", {1, 70, 2, 1, 1, GateKind::kBilinear}},
    {"long", {1, 1021, 1, 16, 32, GateKind::kVector}},
};

/// Speed, on a CPU: heads of the tiny model, and wide ones. The benchmark chooses B and T, here and below.
inline constexpr AttentionShape kCpuBenchmarkShapes[] = {
    {0, 0, 4, 32, 64, GateKind::kVector},
    {0, 0, 4, 32, 64, GateKind::kFixed},
    {0, 0, 4, 32, 64, GateKind::kBilinear},
    {0, 0, 2, 128, 128, GateKind::kVector},
};

/// On a GPU: heads of published models, and every gate kind.
inline constexpr AttentionShape kGpuBenchmarkShapes[] = {
    {0, 0, 4, 256, 512, GateKind::kVector},    {0, 0, 16, 128, 128, GateKind::kVector},
    {0, 0, 16, 128, 128, GateKind::kFixed},    {0, 0, 32, 64, 64, GateKind::kFixed},
    {0, 0, 16, 128, 128, GateKind::kScalar},   {0, 0, 16, 128, 128, GateKind::kNone},
    {0, 0, 16, 128, 128, GateKind::kBilinear},
};

}  // namespace baton
