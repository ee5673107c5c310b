# Tests of label kernel: baton_test(kernel NAME LIBRARIES...)
add_library(baton_reference STATIC reference/attention_reference.cpp reference/attention_runner.cpp
  reference/golden_file.cpp)
target_link_libraries(baton_reference PUBLIC baton_kernels GTest::gtest)

baton_test(kernel linear_attention_golden_test baton_reference)
baton_test(kernel linear_attention_test baton_reference OpenMP::OpenMP_CXX)
baton_test(kernel linear_attention_shards_test baton_reference)

foreach(op matmul norm elementwise embedding loss adamw carry)
  baton_test(kernel ${op}_test baton_kernels)
endforeach()
target_link_libraries(matmul_test PRIVATE OpenBLAS::OpenBLAS)

# Tests of the CUDA backend: label gpu, skipped where there is no device.
# baton_gpu_test(FOLDER/NAME LIBRARIES...): one executable NAME from that file and the main of kernel/cuda_main.cpp.
if(BATON_HAS_CUDA)
  function(baton_gpu_test path)
    get_filename_component(name ${path} NAME)
    add_executable(${name} ${path}.cpp kernel/cuda_main.cpp)
    target_link_libraries(${name} PRIVATE ${ARGN} GTest::gtest)
    target_link_options(${name} PRIVATE -Wl,--as-needed)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME gpu/${name} COMMAND ${name})
    set_tests_properties(gpu/${name} PROPERTIES LABELS gpu TIMEOUT 600 SKIP_RETURN_CODE 77)
  endfunction()

  baton_gpu_test(kernel/cuda_ops_test baton_kernels)
  target_sources(cuda_ops_test PRIVATE kernel/cuda_carry_test.cpp kernel/cuda_elementwise_test.cpp kernel/cuda_embedding_test.cpp
    kernel/cuda_matmul_test.cpp kernel/cuda_norm_test.cpp)
  baton_gpu_test(kernel/cuda_linear_attention_test baton_reference)
  target_sources(cuda_linear_attention_test PRIVATE kernel/cuda_linear_attention_shards_test.cpp)
  baton_gpu_test(kernel/cuda_linear_attention_walk_test baton_reference)
  target_compile_definitions(cuda_linear_attention_test PRIVATE BATON_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endif()
