#include "tests/dump_runner.h"

#include <gtest/gtest.h>

#include "model/state_dump.h"
#include "runtime/hdf5_file.h"
#include "tests/unit/scratch_dir.h"

namespace baton::test {
namespace {

void read_group(const Hdf5File& file, const std::string& group, Dump& dump) {
  for (const std::string& name : file.list(group.empty() ? "/" : group)) {
    const std::string path = group.empty() ? name : group + "/" + name;
    if (file.is_group(path)) {
      read_group(file, path, dump);
      continue;
    }
    const OwnedTensor x(file.shape(path), DType::kFloat64);
    file.read(path, x);
    dump[path] = {x.tensor.shape, {x.tensor.as<double>(), x.tensor.as<double>() + x.tensor.numel()}};
  }
}

}  // namespace

Dump dump_of(ModelRun run, const std::string& what, const std::string& layers) {
  const ScratchDir dir;
  Config config;
  config.model = run.config;
  config.data.seq_len = run.T_total;
  config.train.window = run.window;
  config.dump.grid = kGrid;
  config.dump.what = what;
  config.dump.layers = layers;
  std::vector<std::unique_ptr<StateDump>> dumps(static_cast<size_t>(run.num_ranks));
  run.probe = [&](Group& group) {
    auto& dump = dumps[static_cast<size_t>(group.rank())];
    dump = std::make_unique<StateDump>(config, Topology{group.size(), group.rank(), group.size()}, dir.path(), 7);
    return dump->probe();
  };
  run_model(run);
  std::string path;
  run_ranks(run.num_ranks, [&](Group& group) {
    const std::string mine = dumps[static_cast<size_t>(group.rank())]->commit(group);
    if (group.rank() == 0) path = mine;
  });
  EXPECT_EQ(path, dir.path("step-00000007.h5"));
  Dump dump;
  read_group(Hdf5File(path, Hdf5File::Mode::kRead), "", dump);
  return dump;
}

Dump without_sp(Dump dump) {
  std::erase_if(dump, [](const auto& entry) { return entry.first.starts_with("sp/"); });
  return dump;
}

void expect_same(const Dump& a, const Dump& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [path, x] : a) {
    ASSERT_TRUE(b.contains(path)) << path;
    const Dumped& y = b.at(path);
    EXPECT_EQ(x.shape, y.shape) << path;
    if (bound == 0) {
      EXPECT_EQ(x.values, y.values) << path;
    } else {
      EXPECT_LE(relative_difference(x.values, y.values), bound) << path;
    }
  }
}

}  // namespace baton::test
