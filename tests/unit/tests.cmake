# Tests of label unit: baton_test(unit NAME LIBRARIES...)
baton_test(unit hdf5_file_test baton_runtime)
baton_test(unit topology_test baton_comm)
baton_test(unit device_test baton_comm)
baton_test(unit config_test baton_runtime GTest::gmock)
baton_test(unit options_test baton_launch GTest::gmock)
baton_test(unit dataset_test baton_runtime GTest::gmock)
baton_test(unit tokenizer_test baton_runtime SentencePiece::SentencePiece sentencepiece_train GTest::gmock)
baton_test(unit log_test baton_runtime GTest::gmock)
baton_test(unit checkpoint_test baton_runtime)
baton_test(unit dump_test baton_runtime)
baton_test(unit tensor_test baton_runtime)
baton_test(unit memory_test baton_runtime)
baton_test(unit range_path_test baton_runtime)
baton_test(unit rng_test baton_runtime)
baton_test(unit error_test baton_runtime)
baton_test(unit schedule_test baton_model)
baton_test(unit tokens_test baton_launch)
baton_test(unit memory_plan_test baton_launch)
baton_test(unit bench_test baton_launch GTest::gmock)
baton_test(unit scaling_plan_test baton_launch GTest::gmock)
if(BATON_HAS_CUDA)
  baton_test(unit profiler_test baton_runtime GTest::gmock)
endif()

# Checks of the sources themselves.
add_test(NAME unit/include_directions
  COMMAND ${BATON_PYTHON} -B ${CMAKE_SOURCE_DIR}/tools/check_includes.py ${CMAKE_SOURCE_DIR})
add_test(NAME unit/include_directions_finds_faults
  COMMAND ${BATON_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/unit/check_includes_test.py ${CMAKE_SOURCE_DIR}/tools/check_includes.py)
add_test(NAME unit/launch_scripts
  COMMAND ${BATON_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/unit/launch_scripts_test.py ${CMAKE_SOURCE_DIR})
add_test(NAME unit/bench_peers
  COMMAND ${BATON_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/unit/bench_peers_test.py ${CMAKE_SOURCE_DIR}/tools/bench_peers.py)
set_tests_properties(unit/include_directions unit/include_directions_finds_faults unit/launch_scripts unit/bench_peers
  PROPERTIES LABELS unit)
find_program(CLANG_FORMAT NAMES clang-format-14 clang-format) # other versions format differently
if(CLANG_FORMAT)
  set(formatted)
  foreach(folder runtime comm kernels model launch tests)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.h ${CMAKE_SOURCE_DIR}/${folder}/*.cpp
         ${CMAKE_SOURCE_DIR}/${folder}/*.cuh ${CMAKE_SOURCE_DIR}/${folder}/*.cu)
    list(APPEND formatted ${found})
  endforeach()
  add_test(NAME unit/format COMMAND ${CLANG_FORMAT} --dry-run -Werror ${formatted})
  set_tests_properties(unit/format PROPERTIES LABELS unit)
endif()
