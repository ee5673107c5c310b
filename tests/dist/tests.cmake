# Tests of label dist: baton_test(dist NAME LIBRARIES...)
