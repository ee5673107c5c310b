# Tests of label unit: baton_test(unit NAME LIBRARIES...)
baton_test(unit hdf5_file_test baton_runtime)
baton_test(unit topology_test baton_comm)
