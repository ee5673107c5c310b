# Tests of label kernel: baton_test(kernel NAME LIBRARIES...)
add_library(baton_reference STATIC reference/attention_reference.cpp reference/attention_runner.cpp)
target_link_libraries(baton_reference PUBLIC baton_kernels GTest::gtest)

baton_test(kernel linear_attention_golden_test baton_reference)
baton_test(kernel linear_attention_test baton_reference OpenMP::OpenMP_CXX)
baton_test(kernel linear_attention_shards_test baton_reference)

foreach(op matmul norm elementwise embedding loss adamw)
  baton_test(kernel ${op}_test baton_kernels)
endforeach()
target_link_libraries(matmul_test PRIVATE OpenBLAS::OpenBLAS)
