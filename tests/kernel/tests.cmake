# Tests of label kernel: baton_test(kernel NAME LIBRARIES...)
foreach(op matmul norm elementwise embedding loss adamw)
  baton_test(kernel ${op}_test baton_kernels)
endforeach()
