// Sums over rows, in a fixed order: rows are cut into parts that follow from sizes alone, each part is summed by one
// block into the stream's workspace, and add_parts sums the parts of each column.
#pragma once

#include <algorithm>

#include "kernels/cuda/operand.h"

namespace baton::cuda {

inline constexpr int64_t kMaxParts = 1024;

/// Parts of N rows, with no less than `rows` each on average, that fit the workspace with `part_bytes` each.
inline int64_t num_parts(int64_t N, int64_t rows, int64_t part_bytes) {
  const int64_t parts = std::min({kMaxParts, (N + rows - 1) / rows, kWorkspaceBytes / part_bytes});
  CHECK(parts > 0 || N == 0, "rows of {} bytes are too long for the workspace", part_bytes);
  return parts;
}

/// The first row of a part of N rows.
__host__ __device__ inline int64_t first_row(int64_t part, int64_t parts, int64_t N) { return part * N / parts; }

/// sum [D] += the sum over parts [parts, D]; T is float or double.
template <class T>
void add_parts(const T* parts, int64_t num_parts, int64_t D, float* sum, const Stream& stream);

}  // namespace baton::cuda
