// Dumps: dumps/step-00000010.h5, what the model held at some step at global positions that are multiples of the grid.
// Paths and shapes do not depend on the rank count, so h5diff compares runs; only those of /sp do.
//   /layer.3/state, /layer.3/dstate  [B, num_grid, H, K, V]  the state between tokens p - 1 and p, and its gradient
//   /layer.3/gate                    [B, num_grid, ...]      log gates of token p; bilinear also gate_v
//   /sp/layer.3/entering             [P, B, H, K, V]         what really crossed to each rank; W P rows of W windows
// Every rank writes blocks to a file of its own, which is a plain log; one rank merges them, one block in memory at a
// time, since serial HDF5 has one writer a file and shared filesystems do not keep apart what two hosts write to a
// page.
#pragma once

#include <cstdio>
#include <string>

#include "runtime/tensor.h"

namespace baton {

/// Number of grid points before a position: grid point i is position i * grid. Positions [begin, end) of a shard hold
/// points [num_grid_points(begin), num_grid_points(end)), and num_grid of a whole sequence is num_grid_points(T_total).
inline int64_t num_grid_points(int64_t position, int64_t grid) { return (position + grid - 1) / grid; }

/// Stage 1, every rank: the blocks that it holds.
class DumpPart {
 public:
  /// Makes the directory where it is absent, and replaces what a killed run left. `part` is the world rank.
  DumpPart(const std::string& dumps_dir, int64_t step, int part);
  ~DumpPart();
  DumpPart(const DumpPart&) = delete;
  DumpPart& operator=(const DumpPart&) = delete;

  /// Elements [start, start + block.shape) of dataset `name` ("layer.3/state") of shape `whole`, from host memory. Any
  /// cut of a dataset into blocks will do, by batch rows, positions, micro-batches or windows.
  void add(const std::string& name, const Shape& whole, const Shape& start, const Tensor& block);
  /// Write errors surface here. A part that is not closed is not complete.
  void close();

 private:
  void put(const void* data, int64_t bytes);

  std::string path_;
  std::FILE* file_ = nullptr;
};

/// What stands as attributes of "/".
struct DumpInfo {
  int64_t step = 0, grid = 0, T_total = 0;
};

/// Stage 2, one rank, after all have closed their parts: the file, flushed and renamed; parts are removed. Returns its
/// path. Throws where the blocks do not fill a dataset exactly.
std::string commit_dump(const std::string& dumps_dir, const DumpInfo& info, int num_parts);

}  // namespace baton
