// The operator on a CUDA device against the golden file, the references and the CPU's float64: float32 by plain
// arithmetic, bfloat16 on tensor cores (K and V multiples of 8) or by plain arithmetic (other sizes).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/shapes.h"
#include "runtime/cuda.h"
#include "runtime/memory.h"
#include "tests/reference/attention_runner.h"
#include "tests/reference/golden_file.h"

namespace baton::test {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr GateKind kGates[] = {GateKind::kNone, GateKind::kFixed, GateKind::kScalar, GateKind::kVector,
                               GateKind::kBilinear};
constexpr double kForget = -std::numeric_limits<double>::infinity();

const Stream& stream() {
  static const cuda::OwnedStream owned(0, false);
  return owned.stream();
}

AttentionResult run(const AttentionProblem& p, DType dtype, const std::vector<int64_t>& cuts = {}) {
  return run_operator(p, dtype, cuts, stream());
}

void expect_right(const AttentionProblem& exact) {
  const AttentionProblem p = rounded(exact);
  const AttentionResult ref = token_reference(p);
  for (DType dtype : kDTypes) {
    SCOPED_TRACE(to_string(dtype));
    expect_close(p, ref, run(p, dtype), dtype);
  }
}

/// Prints the largest error of every tensor beside its bound, so that a run shows how far it is from failing.
class Worst {
 public:
  explicit Worst(DType dtype) : dtype_(dtype) {}
  void add(const AttentionProblem& p, const AttentionResult& ref, const AttentionResult& x) {
    for (const auto& [name, tensor] : ref) {
      errors_[name] = std::max(errors_[name], relative_error(p, ref, x, dtype_, name));
    }
  }
  ~Worst() {
    fmt::print("worst of {}:", to_string(dtype_));
    for (const auto& [name, error] : errors_) fmt::print("  {} {:.1e}/{:.0e}", name, error, tolerance(dtype_, name));
    fmt::print("\n");
  }

 private:
  DType dtype_;
  std::map<std::string, double> errors_;
};

TEST(CudaLinearAttention, EveryGoldenCase) {
  const Hdf5File file(BATON_SOURCE_DIR "/tests/data/operator.h5", Hdf5File::Mode::kRead);
  for (DType dtype : kDTypes) {
    Worst worst(dtype);
    int num_cases = 0;
    for (const std::string& name : golden_cases(file)) {
      SCOPED_TRACE(name + " " + to_string(dtype));
      const AttentionProblem p = read_golden_problem(file, name);
      const AttentionResult ref = read_golden_result(file, name), x = run(p, dtype);
      expect_close(p, ref, x, dtype);
      worst.add(p, ref, x);
      ++num_cases;
    }
    EXPECT_EQ(num_cases, 64);
  }
}

TEST(CudaLinearAttention, EveryShape) {
  for (const NamedShape& named : kTestShapes) {
    SCOPED_TRACE(named.name);
    expect_right(random_problem(named.shape, 1));
  }
}

/// Little enough for a race checker.
TEST(CudaLinearAttention, OneOfEveryGate) {
  for (GateKind gate : kGates) {
    SCOPED_TRACE(to_string(gate));
    expect_right(random_problem({1, 70, 1, 64, 72, gate}, 3));
  }
}

/// Head dimensions of the tensor cores' kernels, whole tiles and parts of tiles, with documents.
TEST(CudaLinearAttention, EveryHeadDimensionOfTensorCores) {
  constexpr std::pair<int64_t, int64_t> kDims[] = {{64, 64}, {128, 128}, {256, 512}, {64, 192}, {8, 136}, {72, 16}};
  for (GateKind gate : kGates) {
    Worst worst(DType::kBFloat16);
    for (const auto& [K, V] : kDims) {
      SCOPED_TRACE(fmt::format("{} K {} V {}", to_string(gate), K, V));
      AttentionProblem p = rounded(random_problem({1, 147, 2, K, V, gate}, 12));
      p.starts.resize(147);
      p.starts[70] = p.starts[131] = 1;
      const AttentionResult ref = token_reference(p), x = run(p, DType::kBFloat16);
      expect_close(p, ref, x, DType::kBFloat16);
      worst.add(p, ref, x);
    }
  }
}

TEST(CudaLinearAttention, LongSequenceAgainstTheCpuInFloat64) {
  for (GateKind gate : kGates) {
    const AttentionProblem p = rounded(random_problem({2, 1500, 2, 64, 128, gate}, 13));
    const AttentionResult ref = run_operator(p, DType::kFloat64);
    for (DType dtype : kDTypes) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(gate), to_string(dtype)));
      expect_close(p, ref, run(p, dtype), dtype);
    }
  }
}

TEST(CudaLinearAttention, EveryLengthOfAChunkAndEveryGate) {
  for (GateKind gate : kGates) {
    for (int64_t T = 1; T <= 2 * kChunk + 2; T += T < 20 ? 1 : 11) {
      SCOPED_TRACE(fmt::format("{} T {}", to_string(gate), T));
      expect_right(random_problem({1, T, 1, 8, 16, gate}, 2));
    }
  }
}

TEST(CudaLinearAttention, NoTokensPassTheStateOn) {
  for (GateKind gate : kGates) {
    const AttentionProblem p = rounded(random_problem({2, 0, 3, 8, 12, gate}, 3));
    for (DType dtype : kDTypes) {
      const AttentionResult x = run(p, dtype);
      EXPECT_EQ(x.at("ht"), p.h0);
      EXPECT_EQ(x.at("dh0"), p.dht);
    }
  }
}

/// Gates set to a value everywhere, in one channel, or at one token of each kind of boundary.
TEST(CudaLinearAttention, EveryDecay) {
  const int64_t boundaries[] = {0, 1, 15, 16, 17, 31, 32, 63, 64, 65, 127, 128, 129};
  for (GateKind gate : {GateKind::kFixed, GateKind::kScalar, GateKind::kVector, GateKind::kBilinear}) {
    for (double value : {0.0, -1e-6, -5.0, -50.0, -1e3, -1e4, kForget}) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(gate), value));
      const AttentionProblem plain = random_problem({1, 130, 1, 8, 16, gate}, 5);
      AttentionProblem p = plain;
      p.gk.assign(p.gk.size(), value);
      p.gv.assign(p.gv.size(), value);
      expect_right(p);
      if (gate == GateKind::kFixed) continue;
      const int64_t row = static_cast<int64_t>(plain.gk.size()) / plain.shape.T;
      p = plain;
      for (size_t i = 0; i < p.gk.size(); i += row) p.gk[i] = value;
      expect_right(p);
      for (int64_t t : boundaries) {
        SCOPED_TRACE(fmt::format("token {}", t));
        p = plain;
        std::fill_n(p.gk.begin() + t * row, row, value);
        expect_right(p);
      }
    }
  }
}

TEST(CudaLinearAttention, GateGradientIsExactlyZeroWhereTheStateIsForgotten) {
  for (GateKind gate : {GateKind::kScalar, GateKind::kVector, GateKind::kBilinear}) {
    for (DType dtype : kDTypes) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(gate), to_string(dtype)));
      AttentionProblem p = random_problem({1, 130, 1, 8, 16, gate}, 6);
      const int64_t row = static_cast<int64_t>(p.gk.size()) / p.shape.T;
      p.starts.resize(static_cast<size_t>(p.shape.T));
      p.starts[40] = p.starts[64] = 1;
      p.gk[70 * row] = kForget;
      const AttentionResult x = run(p, dtype);
      for (int64_t t : {40, 64}) {
        for (int64_t c = 0; c < row; ++c) EXPECT_EQ(x.at("dgk")[t * row + c], 0.0);
        for (int64_t c = 0; c < 16 && gate == GateKind::kBilinear; ++c) EXPECT_EQ(x.at("dgv")[t * 16 + c], 0.0);
      }
      EXPECT_EQ(x.at("dgk")[70 * row], 0.0);
    }
  }
}

/// Documents at any token, some one token long; one of them 8 times as large as its neighbours.
TEST(CudaLinearAttention, PackedDocumentsEqualDocumentsAlone) {
  const std::vector<int64_t> cuts{0, 1, 2, 17, 63, 64, 65, 100, 128, 190};
  for (GateKind gate : kGates) {
    AttentionProblem p = random_problem({1, cuts.back(), 2, 16, 24, gate}, 7);
    for (auto member : {&AttentionProblem::q, &AttentionProblem::k, &AttentionProblem::v, &AttentionProblem::dout}) {
      const int64_t row = static_cast<int64_t>((p.*member).size()) / p.shape.T;
      for (int64_t i = cuts[3] * row; i < cuts[4] * row; ++i) (p.*member)[i] *= 8;
    }
    p = rounded(p);
    p.starts.resize(static_cast<size_t>(p.shape.T));
    for (size_t i = 1; i + 1 < cuts.size(); ++i) p.starts[cuts[i]] = 1;
    AttentionResult alone;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      AttentionProblem document = take_tokens(p, cuts[i], cuts[i + 1]);
      document.starts.clear();
      if (i > 0) document.h0.assign(document.h0.size(), 0.0);
      if (i + 2 < cuts.size()) document.dht.assign(document.dht.size(), 0.0);
      for (const auto& [name, x] : token_reference(document)) {
        if (name == "dh0" ? i == 0 : name == "ht" ? i + 2 == cuts.size() : true) {
          alone[name].insert(alone[name].end(), x.begin(), x.end());
        }
      }
    }
    for (DType dtype : kDTypes) {
      SCOPED_TRACE(fmt::format("{} {}", to_string(gate), to_string(dtype)));
      // In bfloat16 single documents, some of one token, are held to the whole's bound of V3.
      const AttentionResult x = run(p, dtype);
      if (dtype == DType::kFloat32) expect_close(p, alone, x, dtype, cuts);
      for (const auto& [name, tensor] : alone) {
        EXPECT_LE(relative_error(p, alone, x, dtype, name, cuts), dtype == DType::kFloat32 ? 1e-5 : 1e-2) << name;
      }
    }
  }
}

TEST(CudaLinearAttention, StateAndItsGradientAtAnyToken) {
  for (GateKind gate : kGates) {
    const AttentionProblem p = rounded(random_problem({2, 150, 2, 16, 40, gate}, 9));
    for (int64_t t : {0, 1, 63, 64, 65, 128, 149, 150}) {
      SCOPED_TRACE(fmt::format("{} token {}", to_string(gate), t));
      const AttentionProblem before = take_tokens(p, 0, t), after = take_tokens(p, t, 150);
      const AttentionResult ref{{"h", token_reference(before).at("ht")}, {"dh", token_reference(after).at("dh0")}};
      for (DType dtype : kDTypes) expect_close(p, ref, run_states_at(p, dtype, t, stream()), dtype);
    }
  }
}

TEST(CudaLinearAttention, EndsThatNobodyWantsAreLeftOut) {
  for (GateKind gate : kGates) {
    const AttentionProblem p = rounded(random_problem({2, 150, 2, 16, 40, gate}, 18));
    for (DType dtype : kDTypes) expect_same_without_ends(p, dtype, stream());
  }
}

TEST(CudaLinearAttention, TwoRunsGiveTheSameBits) {
  for (GateKind gate : kGates) {
    for (DType dtype : kDTypes) {
      const AttentionProblem p = rounded(random_problem({2, 200, 3, 64, 136, gate}, 8));
      const AttentionResult first = run(p, dtype);
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(run(p, dtype) == first) << to_string(gate) << " " << to_string(dtype);
    }
  }
}

TEST(CudaLinearAttention, WrongTensorsAreRefused) {
  AttentionProblem p = random_problem({1, 8, 1, 4, 4, GateKind::kVector}, 11);
  EXPECT_THROW(run(p, DType::kFloat64), Error);
  p.shape.gate = GateKind::kScalar;
  p.gk.resize(8);
  EXPECT_NO_THROW(run(p, DType::kFloat32));
  AttentionInputs in;
  in.shape = p.shape;
  EXPECT_THROW(carry_forward(in, {}, stream()), Error);
}

}  // namespace
}  // namespace baton::test
