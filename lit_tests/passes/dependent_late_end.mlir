// RUN: %mlirc-opt %s --pass mlirc-dependent-launches | %filecheck %s

// One that copies nothing lets it by ending.
// CHECK-LABEL: gpu.func @k_0
// CHECK: nvvm.griddepcontrol wait
// CHECK-NOT: launch_dependents
module attributes {gpu.container_module} {
  gpu.module @k_gpu {
    gpu.func @k_0(%x: memref<64xf32>, %y: memref<64xf32>) kernel {
      %i = gpu.thread_id x
      %a = memref.load %x[%i] : memref<64xf32>
      memref.store %a, %y[%i] : memref<64xf32>
      gpu.return
    }
  }
  func.func @k(%x: memref<64xf32>, %y: memref<64xf32>)
      attributes {mlirc.kernel, mlirc.dependent, mlirc.lets_begin_late, mlirc.given = array<i64>} {
    %one = arith.constant 1 : index
    %n = arith.constant 64 : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%one, %one, %one) threads in (%n, %one, %one)
      args(%x : memref<64xf32>, %y : memref<64xf32>)
    return
  }
}
