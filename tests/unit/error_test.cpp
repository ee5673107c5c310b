#include "runtime/error.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  return Error(ExitCode::kDone, "nothing was thrown");
}

TEST(ErrorTest, ChecksCarryExpressionAndPlace) {
  const int rank = 3, size = 2;
  const int line = __LINE__ + 1;
  const Error error = error_of([&] { CHECK(rank < size, "rank {} of {}", rank, size); });
  EXPECT_EQ(error.code(), ExitCode::kTransport);
  EXPECT_STREQ(error.what(), "rank 3 of 2");
  EXPECT_STREQ(error.expression(), "rank < size");
  EXPECT_EQ(error.line(), line);
  EXPECT_EQ(error.describe(), fmt::format("rank 3 of 2 [rank < size at {}:{}]", __FILE__, line));
}

TEST(ErrorTest, InputErrorsAreOneSentence) {
  const Error error = error_of([] { CHECK_INPUT(false, "train.lr = {} must be positive", -1); });
  EXPECT_EQ(error.code(), ExitCode::kInput);
  EXPECT_EQ(error.describe(), "train.lr = -1 must be positive");
}

TEST(ErrorTest, CodesAreThoseOfTheManual) {
  EXPECT_EQ(error_of([] { CHECK_CODE(ExitCode::kNotFinite, false, "NaN"); }).code(), ExitCode::kNotFinite);
  const std::pair<ExitCode, int> all[] = {{ExitCode::kDone, 0},      {ExitCode::kComparison, 1},
                                          {ExitCode::kInput, 2},     {ExitCode::kNotFinite, 3},
                                          {ExitCode::kTransport, 4}, {ExitCode::kStopped, 75}};
  for (const auto& [code, value] : all) EXPECT_EQ(static_cast<int>(code), value);
}

TEST(ErrorTest, ChecksThatHoldDoNothing) {
  int evaluated = 0;
  EXPECT_NO_THROW(CHECK(++evaluated == 1, "evaluated {} times", evaluated));
  EXPECT_EQ(evaluated, 1);
}

}  // namespace
}  // namespace baton
