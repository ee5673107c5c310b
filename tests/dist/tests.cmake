# Tests of label dist, which run under mpirun.
# baton_dist_test(NAME LIBRARIES lib... NP n...): one executable from dist/NAME.cpp, with its own main that makes a World;
# one test for each number of ranks. CTest runs them one at a time, since each may use all cores.
set(BATON_MPIRUN ${MPIEXEC_EXECUTABLE} --oversubscribe --allow-run-as-root --bind-to none)

function(baton_dist_test name)
  cmake_parse_arguments(arg "" "" "LIBRARIES;NP" ${ARGN})
  add_executable(${name} dist/${name}.cpp)
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES})
  target_compile_definitions(${name} PRIVATE BATON_SOURCE_DIR="${CMAKE_SOURCE_DIR}" BATON_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  foreach(np ${arg_NP})
    add_test(NAME dist/${name}/${np} COMMAND ${BATON_MPIRUN} -np ${np} $<TARGET_FILE:${name}>)
    set_tests_properties(dist/${name}/${np} PROPERTIES
      LABELS dist RUN_SERIAL TRUE TIMEOUT 300 ENVIRONMENT OMP_NUM_THREADS=1)
  endforeach()
endfunction()

baton_dist_test(comm_dist_test LIBRARIES baton_comm NP 1 2 3 4 8)
target_sources(comm_dist_test PRIVATE comm_checks.cpp scan_checks.cpp strategy_checks.cpp)
add_test(NAME dist/comm_dist_test/without_mpirun COMMAND comm_dist_test)
set_tests_properties(dist/comm_dist_test/without_mpirun PROPERTIES LABELS dist RUN_SERIAL TRUE TIMEOUT 300)

baton_dist_test(operator_dist_test LIBRARIES baton_model baton_reference NP 2 3 4 8)
target_sources(operator_dist_test PRIVATE operator_checks.cpp operator_ranks.cpp)
foreach(np 16 32)
  add_test(NAME dist/operator_dist_test/traffic_${np} COMMAND ${BATON_MPIRUN} -np ${np} $<TARGET_FILE:operator_dist_test> traffic)
  set_tests_properties(dist/operator_dist_test/traffic_${np} PROPERTIES
    LABELS dist RUN_SERIAL TRUE TIMEOUT 300 ENVIRONMENT OMP_NUM_THREADS=1)
endforeach()

# Started by killed_rank_test.py.
add_executable(killed_rank dist/killed_rank.cpp)
target_link_libraries(killed_rank PRIVATE baton_comm)
set_target_properties(killed_rank PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

# Over NCCL, one GPU a rank; skipped where there are fewer GPUs.
if(BATON_HAS_CUDA)
  baton_dist_test(nccl_dist_test LIBRARIES baton_model baton_reference NP 1 2)
  target_sources(nccl_dist_test PRIVATE comm_checks.cpp scan_checks.cpp strategy_checks.cpp operator_checks.cpp
    operator_ranks.cpp dist/device_scan_checks.cpp dist/device_carry.cu)
  set_tests_properties(dist/nccl_dist_test/1 dist/nccl_dist_test/2 PROPERTIES
    LABELS "dist;gpu" SKIP_RETURN_CODE 77 ENVIRONMENT NCCL_NVLS_ENABLE=0)
endif()

# Whole programs under mpirun, most of them baton on a tiny model: dist/NAME.py, and what they share in dist/driver.py.
foreach(name replay_dist_test resume_test layouts_test bad_input_test not_finite_test stop_test program_test dump_test
             killed_rank_test lost_rank_test convert_test stream_test)
  add_test(NAME dist/${name} COMMAND ${BATON_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/dist/${name}.py
           $<TARGET_FILE:baton> ${CMAKE_SOURCE_DIR} ${BATON_MPIRUN})
  set_tests_properties(dist/${name} PROPERTIES LABELS dist RUN_SERIAL TRUE TIMEOUT 600)
endforeach()
if(BATON_HAS_CUDA)
  foreach(name lost_rank_test gpu_program_test stream_test)
    add_test(NAME gpu/${name} COMMAND ${BATON_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/dist/${name}.py
             $<TARGET_FILE:baton> ${CMAKE_SOURCE_DIR} ${BATON_MPIRUN})
    set_tests_properties(gpu/${name} PROPERTIES LABELS "dist;gpu" RUN_SERIAL TRUE TIMEOUT 600 SKIP_RETURN_CODE 77
      ENVIRONMENT "BATON_TEST_DEVICE=cuda;NCCL_NVLS_ENABLE=0")
  endforeach()
endif()
