# Tests of label sim: baton_test(sim NAME LIBRARIES...)
