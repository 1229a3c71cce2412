// RUN: %mlirc-opt %s --pass mlirc-dependent-launches | %filecheck %s

// A kernel that lets the next one begin behind its first copies.
// CHECK-LABEL: gpu.func @k_0
// CHECK-NOT: launch_dependents
// CHECK: nvvm.griddepcontrol wait
// CHECK: scf.if
// CHECK: nvgpu.device_async_copy
// CHECK: nvvm.cp.async.commit.group
// CHECK-NEXT: nvvm.griddepcontrol launch_dependents
// CHECK: nvvm.cp.async.commit.group
// CHECK-NOT: launch_dependents
// CHECK: gpu.launch_func @k_gpu::@k_0 {{.*}} {mlirc.dependent}
module attributes {gpu.container_module} {
  gpu.module @k_gpu {
    gpu.func @k_0(%x: memref<64x4xf32>, %y: memref<64xf32>) kernel {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %c60 = arith.constant 60 : index
      %i = gpu.thread_id x
      %s = memref.alloca() : memref<64x4xf32, #gpu.address_space<workgroup>>
      %low = arith.cmpi ult, %i, %c60 : index
      scf.if %low {
        %t = nvgpu.device_async_copy %x[%i, %c0], %s[%i, %c0], 2 : memref<64x4xf32> to memref<64x4xf32, #gpu.address_space<workgroup>>
        nvvm.cp.async.commit.group
        %u = nvgpu.device_async_copy %x[%i, %c2], %s[%i, %c2], 2 : memref<64x4xf32> to memref<64x4xf32, #gpu.address_space<workgroup>>
        nvvm.cp.async.commit.group
        nvvm.cp.async.wait.group 0
        %a = memref.load %s[%i, %c1] : memref<64x4xf32, #gpu.address_space<workgroup>>
        memref.store %a, %y[%i] : memref<64xf32>
      }
      gpu.return
    }
  }
  func.func @k(%x: memref<64x4xf32>, %y: memref<64xf32>)
      attributes {mlirc.kernel, mlirc.dependent, mlirc.lets_begin_late, mlirc.given = array<i64>} {
    %one = arith.constant 1 : index
    %n = arith.constant 64 : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%one, %one, %one) threads in (%n, %one, %one)
      args(%x : memref<64x4xf32>, %y : memref<64xf32>)
    return
  }
}
