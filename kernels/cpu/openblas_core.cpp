#include "kernels/cpu/openblas_core.h"

#include <cblas.h>

#include <cstdlib>
#include <string_view>

// Exported by builds of OpenBLAS that hold kernels of several processors; absent, hence null, from others.
extern "C" {
__attribute__((weak)) void gotoblas_dynamic_init();
__attribute__((weak)) void gotoblas_dynamic_quit();
}

namespace baton {

bool choose_openblas_core() {
#if defined(__x86_64__)
  const bool can_choose = gotoblas_dynamic_init != nullptr && gotoblas_dynamic_quit != nullptr;
  if (!can_choose || std::getenv("OPENBLAS_CORETYPE") != nullptr) return true;
  if (std::string_view(openblas_get_corename()) != "Prescott") return true;
  __builtin_cpu_init();
  const char* core = nullptr;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) core = "Haswell";
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
    core = "SkylakeX";
  if (core == nullptr) return true;
  setenv("OPENBLAS_CORETYPE", core, 0);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
#endif
  return true;
}

}  // namespace baton
