#include "runtime/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "runtime/hdf5_file.h"
#include "runtime/memory.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

/// The tensors of a small model, with values that depend on the step alone; more parts than rows, and no rows at all.
class Sample {
 public:
  explicit Sample(double fill) {
    add("param/model.embeddings.weight", {11, 6}, DType::kFloat32, fill);
    add("param/model.norm.weight", {6}, DType::kFloat32, fill);
    add("param/one", {1}, DType::kFloat64, fill);
    add("param/none", {0, 4}, DType::kFloat32, fill);
    add("adam_m/model.embeddings.weight", {11, 6}, DType::kFloat32, fill);
  }
  const std::vector<NamedTensor>& tensors() const { return tensors_; }

  /// Number of elements that are not what the constructor sets.
  int64_t wrong(double fill) const {
    int64_t count = 0;
    for (size_t i = 0; i < tensors_.size(); ++i)
      for (int64_t j = 0; j < tensors_[i].tensor.numel(); ++j)
        count += dispatch_float(tensors_[i].tensor.dtype, [&]<class T>() {
          return tensors_[i].tensor.as<T>()[j] != static_cast<T>(value(fill, i, j));
        });
    return count;
  }

 private:
  static double value(double fill, size_t tensor, int64_t i) {
    return fill * 1000 + static_cast<double>(tensor) * 100 + static_cast<double>(i);
  }
  void add(const std::string& name, const Shape& shape, DType dtype, double fill) {
    const Tensor x = owners_.emplace_back(shape, dtype).tensor;
    for (int64_t i = 0; i < x.numel(); ++i)
      dispatch_float(dtype, [&]<class T>() { x.as<T>()[i] = static_cast<T>(value(fill, tensors_.size(), i)); });
    tensors_.push_back({name, x});
  }

  std::vector<OwnedTensor> owners_;
  std::vector<NamedTensor> tensors_;
};

const char* const kConfig = "[run]\nseed = 1\ndir = \"ä\"\n\n[model]\nlayers = 4\n";

void save(const std::string& dir, int64_t step, int num_parts, int64_t seed = 5) {
  const Sample sample(static_cast<double>(step + seed));
  std::vector<PartInfo> infos;
  for (int p = 0; p < num_parts; ++p) infos.push_back(write_part(dir, sample.tensors(), p, num_parts));
  commit_checkpoint(dir, sample.tensors(), {step, step * 8, step * 100, seed}, kConfig, infos);
}

int64_t wrong_values(const CheckpointReader& reader) {
  const Sample sample(-1);
  reader.read(sample.tensors());
  return sample.wrong(static_cast<double>(reader.state().step + reader.state().seed));
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            fmt::format("baton_ckpt_{}_{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string dir(int64_t step) const { return root_ / checkpoint_name(step); }

  /// The sentence with which a checkpoint is refused.
  static std::string refusal(const std::string& dir) {
    try {
      CheckpointReader{dir};
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInput);
      return error.what();
    }
    return "accepted";
  }

  fs::path root_;
};

TEST_F(CheckpointTest, AnyNumberOfPartsLoads) {
  for (int num_parts : {1, 2, 3, 5, 16}) {
    save(dir(num_parts), num_parts, num_parts);
    const CheckpointReader reader(dir(num_parts));
    EXPECT_EQ(reader.state().step, num_parts);
    EXPECT_EQ(reader.state().samples, num_parts * 8);
    EXPECT_EQ(reader.state().tokens, num_parts * 100);
    EXPECT_EQ(reader.state().seed, 5);
    EXPECT_EQ(reader.config_ini(), kConfig);
    EXPECT_TRUE(reader.has("param/one"));
    EXPECT_FALSE(reader.has("param/two"));
    EXPECT_EQ(wrong_values(reader), 0);
    EXPECT_FALSE(fs::exists(dir(num_parts) + ".tmp"));
  }
}

TEST_F(CheckpointTest, IndexShowsTensorsWhole) {
  save(dir(7), 7, 3);
  const Sample sample(-1);
  const Hdf5File index(dir(7) + "/index.h5", Hdf5File::Mode::kRead);
  for (const auto& [name, x] : sample.tensors()) index.read(name, x);
  EXPECT_EQ(sample.wrong(7 + 5), 0);
  EXPECT_EQ(index.read_int("/state", "step"), 7);
  EXPECT_EQ(index.read_int("/data", "samples"), 56);
  EXPECT_EQ(index.read_int("/data", "tokens"), 700);
  EXPECT_EQ(index.read_int("/rng", "seed"), 5);
}

TEST_F(CheckpointTest, PartsMayBeWrittenAtOnce) {
  const Sample sample(9);
  constexpr int kParts = 8;
  std::vector<PartInfo> infos(kParts);
  {
    std::vector<std::jthread> ranks;
    for (int p = 0; p < kParts; ++p)
      ranks.emplace_back([&, p] { infos[p] = write_part(dir(4), sample.tensors(), p, kParts); });
  }
  commit_checkpoint(dir(4), sample.tensors(), {4, 0, 0, 5}, "", infos);
  EXPECT_EQ(wrong_values(CheckpointReader(dir(4))), 0);
}

TEST_F(CheckpointTest, AnyFlippedByteIsRefusedByFileName) {
  save(dir(10), 10, 3);
  save(dir(20), 20, 3);
  std::mt19937 random(1);
  for (const char* name : {"part-00000.h5", "part-00001.h5", "part-00002.h5", "index.h5", "manifest.json"}) {
    const std::string path = dir(20) + "/" + name;
    const auto size = static_cast<int64_t>(fs::file_size(path));
    for (int trial = 0; trial < 40; ++trial) {
      // The first and last bytes, the manifest's own checksum, and random places.
      const int64_t at = trial < 32 ? trial : trial == 32 ? size - 1 : static_cast<int64_t>(random() % size);
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const int byte = file.get();
      const int flipped = byte ^ (1 << (random() % 8));
      file.seekp(at);
      file.put(static_cast<char>(flipped));
      file.flush();
      const std::string text = refusal(dir(20));
      EXPECT_TRUE(text.starts_with(dir(20) + ": " + name + " is damaged (")) << text;
      EXPECT_TRUE(text.ends_with("; the previous checkpoint is " + dir(10))) << text;
      file.seekp(at);
      file.put(static_cast<char>(byte));
    }
  }
  EXPECT_EQ(refusal(dir(20)), "accepted");
}

TEST_F(CheckpointTest, MissingAndCutFilesAreRefusedByName) {
  const auto rebuild = [&] {
    fs::remove_all(root_);
    save(dir(10), 10, 2);
    save(dir(20), 20, 2);
  };
  const std::string offer = "; the previous checkpoint is " + dir(10);
  for (const char* name : {"part-00001.h5", "index.h5", "manifest.json"}) {
    rebuild();
    fs::remove(dir(20) + "/" + name);
    EXPECT_EQ(refusal(dir(20)), dir(20) + ": " + name + " is missing" + offer);
    EXPECT_EQ(refusal(dir(20) + "/"), dir(20) + "/: " + name + " is missing" + offer);
    rebuild();
    const std::string path = dir(20) + "/" + name;
    fs::resize_file(path, fs::file_size(path) - 1);
    EXPECT_TRUE(refusal(dir(20)).starts_with(dir(20) + ": " + name + " is damaged (")) << refusal(dir(20));
    fs::resize_file(path, 0);
    EXPECT_TRUE(refusal(dir(20)).starts_with(dir(20) + ": " + name + " is damaged (")) << refusal(dir(20));
  }
  EXPECT_EQ(refusal(dir(30)), dir(30) + ": there is no such directory; the previous checkpoint is " + dir(10));
  fs::remove(dir(10) + "/part-00000.h5");
  EXPECT_EQ(refusal(dir(10)), dir(10) + ": part-00000.h5 is missing; there is no good checkpoint before it");
}

TEST_F(CheckpointTest, WrongTensorsAreRefusedByName) {
  save(dir(1), 1, 2);
  const CheckpointReader reader(dir(1));
  const OwnedTensor x(Shape{6, 11}, DType::kFloat32);
  const auto message = [&](const std::string& name) -> std::string {
    try {
      reader.read({{name, x.tensor}});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInput);
      return error.what();
    }
    return "read";
  };
  EXPECT_EQ(message("param/two"), dir(1) + " has no tensor param/two");
  EXPECT_EQ(message("param/model.embeddings.weight"),
            dir(1) + ": tensor param/model.embeddings.weight has shape [11, 6], the model has [6, 11]");
}

TEST_F(CheckpointTest, LeftoversOfKilledSavesAreReplaced) {
  const Sample sample(3);
  for (int p = 0; p < 5; ++p) write_part(dir(6), sample.tensors(), p, 5);  // never committed
  EXPECT_TRUE(list_checkpoints(root_).empty());
  save(dir(6), 6, 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir(6)), {}), 4);
  save(dir(6), 6, 3, 77);  // again, in place of the first
  const CheckpointReader reader(dir(6));
  EXPECT_EQ(reader.state().seed, 77);
  EXPECT_EQ(wrong_values(reader), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir(6)), {}), 5);
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1);
}

TEST_F(CheckpointTest, PruningKeepsTheNewest) {
  EXPECT_TRUE(list_checkpoints(root_).empty());
  prune_checkpoints(root_, 2);
  for (int64_t step : {100000000, 2, 10, 9}) save(dir(step), step, 1);
  const Sample sample(3);
  write_part(dir(5), sample.tensors(), 0, 2);
  write_part(dir(100000001), sample.tensors(), 0, 2);  // the next save, under way
  fs::create_directories(root_ / "notes");
  EXPECT_EQ(list_checkpoints(root_), (std::vector<std::string>{dir(2), dir(9), dir(10), dir(100000000)}));
  prune_checkpoints(root_, 0);
  EXPECT_EQ(list_checkpoints(root_).size(), 4);
  EXPECT_FALSE(fs::exists(dir(5) + ".tmp"));
  prune_checkpoints(root_, 2);
  EXPECT_EQ(list_checkpoints(root_), (std::vector<std::string>{dir(10), dir(100000000)}));
  EXPECT_TRUE(fs::exists(dir(100000001) + ".tmp"));
  EXPECT_TRUE(fs::exists(root_ / "notes"));
}

TEST_F(CheckpointTest, LaterOnesAreSetAside) {
  EXPECT_EQ(set_aside_checkpoints(root_, 0), "");
  for (int64_t step : {5, 10, 20, 30}) save(dir(step), step, 1);
  EXPECT_EQ(set_aside_checkpoints(root_, 31), "");
  EXPECT_EQ(set_aside_checkpoints(root_, 20), root_ / "abandoned-1");
  EXPECT_EQ(list_checkpoints(root_), (std::vector<std::string>{dir(5), dir(10)}));
  save(dir(20), 20, 1);
  EXPECT_EQ(set_aside_checkpoints(root_, 10), root_ / "abandoned-2");
  prune_checkpoints(root_, 1);
  EXPECT_EQ(list_checkpoints(root_), (std::vector<std::string>{dir(5)}));
  for (const auto& [below, step] : {std::pair{"abandoned-1", 30}, {"abandoned-2", 10}}) {
    const fs::path aside = root_ / below;
    EXPECT_EQ(list_checkpoints(aside).size(), 2);
    EXPECT_EQ(refusal(aside / checkpoint_name(20)), "accepted");
    EXPECT_EQ(refusal(aside / checkpoint_name(step)), "accepted");
  }
}

/// Saves without end, every step twice, so that a checkpoint is also replaced. Writes a byte to `pipe` after each.
[[noreturn]] void save_forever(const fs::path& root, int64_t first_step, int pipe) noexcept {
  for (int64_t step = first_step;; ++step) {
    for (int64_t seed : {1, 2}) {
      save(root / checkpoint_name(step), step, 3, seed);
      prune_checkpoints(root, 2);
      if (write(pipe, "s", 1) != 1) std::terminate();
    }
  }
}

/// Starts a process that saves, and kills it after `num_saves` and a part of the next.
void kill_during_save(const fs::path& root, int64_t first_step, int num_saves, double part) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) save_forever(root, first_step, ends[1]);
  close(ends[1]);
  auto last = std::chrono::steady_clock::now();
  std::chrono::duration<double> save_time{0};
  char byte = 0;
  for (int i = 0; i < num_saves; ++i) {
    ASSERT_EQ(read(ends[0], &byte, 1), 1) << "the saving process ended by itself";
    const auto now = std::chrono::steady_clock::now();
    save_time = now - std::exchange(last, now);
  }
  std::this_thread::sleep_for(save_time * part);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(ends[0]);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the saving process ended by itself";
}

TEST_F(CheckpointTest, NewestLoadsWheneverASaveIsKilled) {
  constexpr int kKills = 50;
  std::mt19937 random(2);
  save(dir(1), 1, 3);
  int64_t newest = 1;
  int interrupted = 0;
  for (int kill_idx = 0; kill_idx < kKills; ++kill_idx) {
    kill_during_save(root_, newest, 1 + kill_idx % 3, std::uniform_real_distribution(0.0, 1.0)(random));
    if (HasFatalFailure()) return;
    for (const auto& entry : fs::directory_iterator(root_))
      interrupted += entry.path().extension() == ".tmp" || entry.path().extension() == ".old";
    const std::vector<std::string> dirs = list_checkpoints(root_);
    ASSERT_FALSE(dirs.empty());
    for (const std::string& older : dirs) EXPECT_EQ(refusal(older), "accepted");
    const CheckpointReader reader(dirs.back());
    EXPECT_EQ(wrong_values(reader), 0);
    EXPECT_GE(reader.state().step, newest);
    newest = reader.state().step;
  }
  EXPECT_GE(newest, 1 + kKills / 3) << "three saves reach the next step";
  EXPECT_GT(interrupted, kKills / 4) << "too few kills fell into a save";
}

}  // namespace
}  // namespace baton
