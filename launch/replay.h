// baton replay: runs the cases of a file in the layout of golden answers, cut over the ranks, and reports each tensor's
// relative RMS error. The debugging tool for people who doubt a number.
//
//   baton replay tests/data/operator.h5
//   mpirun -np 4 baton replay tests/data/gla.h5 --dtype float64 --out mine.h5
#pragma once

#include <memory>
#include <string>

#include "comm/state_scan.h"
#include "launch/options.h"
#include "model/activations.h"
#include "runtime/hdf5_file.h"
#include "runtime/memory.h"

namespace baton {

struct ReplayOptions {
  std::string file;
  DType dtype = DType::kFloat32;
  std::string device = "auto";
  ScanStrategy scan = ScanStrategy::kChain;
  double tolerance = 0;  // 0: the dtype's
  std::string out;       // empty: no file is written
};

/// Of the command's flags; throws input errors.
ReplayOptions parse_replay_options(const Command& command);

/// The bound on the relative RMS error of a tensor of a case, by its name: of the operator ("/CASE/out/dq") or of a
/// model
/// ("/logits", "/loss", "/grad/NAME", "/state/LAYER"). bfloat16 has wider ones for gate gradients and for models.
double default_tolerance(DType dtype, const std::string& name);

/// Collective; runs on the stream's device, sp_group's device tensors travel there. Returns kDone, or kComparison where
/// a tensor is over tolerance or missing. Prints on rank 0.
ExitCode replay(const ReplayOptions& options, Group& sp_group, const Stream& stream);

/// Judges one case's tensors on rank 0 and keeps the count; shared by operator and model cases.
class ReplayReport {
 public:
  ReplayReport(const ReplayOptions& options, Group& group, const Stream& stream);

  const Hdf5File& file() const { return file_; }
  DType dtype() const { return options_.dtype; }
  Precision precision() const { return Precision::of(options_.dtype); }
  ScanStrategy scan() const { return options_.scan; }
  const Stream& stream() const { return stream_; }
  Group& group() const { return group_; }

  /// Reads a whole dataset into host memory.
  OwnedTensor read(const std::string& name, DType dtype) const;
  /// On rank 0: compares `mine`, a host tensor, with the file's `name` and writes it to the out file. scale_name pairs
  /// name two tensors of the file whose product's norm also bounds the denominator (gate gradients: k and dk).
  void judge(const std::string& name, const Tensor& mine, const std::string& factor_a = "",
             const std::string& factor_b = "");
  /// On rank 0: every dataset of a group must have been judged.
  void expect_complete(const std::string& group_name);
  /// Collective.
  ExitCode finish();

 private:
  void line(const std::string& name, double error, bool good);

  const ReplayOptions& options_;
  Group& group_;
  Stream stream_;
  Hdf5File file_;
  std::unique_ptr<Hdf5File> out_;
  std::vector<std::string> judged_;
  int64_t num_tensors_ = 0, num_failed_ = 0;
  double worst_ = 0;
};

void replay_operator_case(const std::string& name, ReplayReport& report);
void replay_model(ReplayReport& report);

}  // namespace baton
