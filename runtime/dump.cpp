#include "runtime/dump.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "runtime/checkpoint.h"
#include "runtime/files.h"
#include "runtime/hdf5_file.h"
#include "runtime/memory.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

/// What precedes the name and the elements of a block in a part.
struct BlockHead {
  int64_t name_bytes, dtype, rank;
  std::array<int64_t, Shape::kMaxRank> whole, start, shape;
};
static_assert(sizeof(BlockHead) == 18 * sizeof(int64_t), "a head is written as it lies in memory");

std::array<int64_t, Shape::kMaxRank> padded(const Shape& shape) {
  std::array<int64_t, Shape::kMaxRank> dims{};
  for (int i = 0; i < shape.rank(); ++i) dims[i] = shape[i];
  return dims;
}

std::string dump_path(const std::string& dumps_dir, int64_t step) {
  return fs::path(dumps_dir) / (checkpoint_name(step) + ".h5");
}

std::string part_path(const std::string& dumps_dir, int64_t step, int part) {
  return fmt::format("{}.part-{:05d}", dump_path(dumps_dir, step), part);
}

/// The blocks of one part, in turn.
class PartReader {
 public:
  explicit PartReader(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rb")) {
    CHECK(file_ != nullptr, "{} cannot be opened: {}", path, std::strerror(errno));
  }
  ~PartReader() { std::fclose(file_); }
  PartReader(const PartReader&) = delete;
  PartReader& operator=(const PartReader&) = delete;

  /// False at the end.
  bool next() {
    BlockHead head;
    const size_t bytes = std::fread(&head, 1, sizeof head, file_);
    if (bytes == 0 && std::feof(file_) != 0) return false;
    CHECK(bytes == sizeof head, "{} is cut short", path_);
    name.resize(static_cast<size_t>(head.name_bytes));
    get(name.data(), head.name_bytes);
    const auto rank = static_cast<size_t>(head.rank);
    whole = Shape(std::span(head.whole).first(rank));
    start = Shape(std::span(head.start).first(rank));
    block = OwnedTensor(Shape(std::span(head.shape).first(rank)), static_cast<DType>(head.dtype));
    get(block.tensor.data, block.tensor.bytes());
    return true;
  }

  std::string name;
  Shape whole, start;
  OwnedTensor block;

 private:
  void get(void* data, int64_t bytes) {
    const auto count = static_cast<size_t>(bytes);
    CHECK(count == 0 || std::fread(data, 1, count, file_) == count, "{} is cut short", path_);
  }

  std::string path_;
  std::FILE* file_;
};

}  // namespace

DumpPart::DumpPart(const std::string& dumps_dir, int64_t step, int part) : path_(part_path(dumps_dir, step, part)) {
  fs::create_directories(dumps_dir);
  file_ = std::fopen(path_.c_str(), "wb");
  CHECK(file_ != nullptr, "{} cannot be written: {}", path_, std::strerror(errno));
}

DumpPart::~DumpPart() {
  if (file_ != nullptr) std::fclose(file_);
}

void DumpPart::put(const void* data, int64_t bytes) {
  const auto count = static_cast<size_t>(bytes);
  CHECK(count == 0 || std::fwrite(data, 1, count, file_) == count, "{} cannot be written: {}", path_,
        std::strerror(errno));
}

void DumpPart::add(const std::string& name, const Shape& whole, const Shape& start, const Tensor& block) {
  CHECK(block.device.type == DeviceType::kCpu, "blocks are dumped from host memory only");
  CHECK(whole.rank() == start.rank() && whole.rank() == block.shape.rank(),
        "block {} at {} and dataset {} of shape {} differ in rank", block.shape.str(), start.str(), name, whole.str());
  const BlockHead head{static_cast<int64_t>(name.size()),
                       static_cast<int64_t>(block.dtype),
                       whole.rank(),
                       padded(whole),
                       padded(start),
                       padded(block.shape)};
  put(&head, sizeof head);
  put(name.data(), head.name_bytes);
  put(block.data, block.bytes());
}

void DumpPart::close() {
  std::FILE* file = std::exchange(file_, nullptr);
  CHECK(std::fclose(file) == 0, "{} cannot be written: {}", path_, std::strerror(errno));
}

std::string commit_dump(const std::string& dumps_dir, const DumpInfo& info, int num_parts) {
  const std::string path = dump_path(dumps_dir, info.step), unfinished = path + ".tmp";
  Hdf5File file(unfinished, Hdf5File::Mode::kCreate);
  file.write_int("/", "step", info.step);
  file.write_int("/", "grid", info.grid);
  file.write_int("/", "T_total", info.T_total);
  std::map<std::string, int64_t> missing;  // elements not yet written, by dataset
  for (int p = 0; p < num_parts; ++p) {
    PartReader part(part_path(dumps_dir, info.step, p));
    while (part.next()) {
      if (!missing.contains(part.name)) {
        file.create("/" + part.name, part.whole, part.block.tensor.dtype);
        missing[part.name] = part.whole.numel();
      }
      CHECK(file.shape("/" + part.name) == part.whole, "ranks disagree on the shape of /{} in {}", part.name, path);
      file.write_block("/" + part.name, part.start, part.block);
      missing[part.name] -= part.block.tensor.numel();
    }
  }
  for (const auto& [name, count] : missing)
    CHECK(count == 0, "{}: {} elements of /{} were not dumped, or (below 0) twice", path, count, name);
  file.close();
  fs::rename(unfinished, path);
  flush_to_disk(dumps_dir);
  for (const fs::path& other : std::vector<fs::path>(fs::directory_iterator(dumps_dir), {}))
    if (other.string().starts_with(path + ".part-")) fs::remove(other);
  return path;
}

}  // namespace baton
