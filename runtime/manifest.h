// Inside of checkpoints: manifest.json, the last file written, which says what the others must be.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/checkpoint.h"

namespace baton {

struct Manifest {
  struct File {
    std::string name;  // relative to the checkpoint
    PartInfo info;
  };
  struct Entry {
    Shape shape;
    DType dtype = DType::kFloat32;
  };
  RunState state;
  int num_parts = 0;
  std::vector<File> files;
  std::map<std::string, Entry> tensors;
  std::string config_ini;

  /// The text holds its own CRC-32, taken with the digits of that checksum as zeros.
  std::string to_text() const;
  /// An input error where any byte of the text is not as it was written.
  static Manifest parse(const std::string& text);
};

std::string part_name(int part);  // "part-00003.h5"

/// First row of a part; that of part num_parts is `rows`.
inline int64_t first_row_of(int64_t rows, int part, int num_parts) { return rows * part / num_parts; }

/// Reads and checks DIR/manifest.json, that every file exists, and its size and (if asked) checksum. An input error
/// names what is wrong, in half a sentence.
Manifest verify_checkpoint(const std::string& dir, bool verify_checksums);

/// Step of a checkpoint's directory name, -1 for any other name.
int64_t step_of(const std::string& dir);

}  // namespace baton
