// Every case of the golden operator file, every tensor, in both dtypes.
#include <gtest/gtest.h>

#include "tests/reference/attention_runner.h"
#include "tests/reference/golden_file.h"

namespace baton::test {
namespace {

TEST(LinearAttentionGolden, EveryCaseInBothDtypes) {
  const Hdf5File file(BATON_SOURCE_DIR "/tests/data/operator.h5", Hdf5File::Mode::kRead);
  int num_cases = 0;
  for (const std::string& name : golden_cases(file)) {
    SCOPED_TRACE(name);
    const AttentionProblem p = read_golden_problem(file, name);
    const AttentionResult ref = read_golden_result(file, name);
    for (DType dtype : {DType::kFloat64, DType::kFloat32}) {
      SCOPED_TRACE(to_string(dtype));
      expect_close(p, ref, run_operator(p, dtype), dtype);
    }
    expect_close(p, ref, token_reference(p), DType::kFloat64);
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 64);
}

}  // namespace
}  // namespace baton::test
