# Tests of label unit: baton_test(unit NAME LIBRARIES...)
