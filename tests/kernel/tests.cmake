# Tests of label kernel: baton_test(kernel NAME LIBRARIES...)
