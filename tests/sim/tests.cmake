# Tests of label sim: baton_test(sim NAME LIBRARIES...)
baton_test(sim comm_test baton_comm)
target_sources(comm_test PRIVATE comm_checks.cpp scan_checks.cpp)
