// RUN: %mlirc-opt %s --pass mlirc-dependent-launches | %filecheck %s

// The load of the weight comes in front of the wait, with the number that it needs; that of x stays behind it, and so
// does the store. Of a loop whose weights cannot all be held, the first iterations are prefetched, in bounds: there
// are three. Under a condition, which is computed again; what an index that is loaded leads to is left out.
// CHECK-LABEL: gpu.func @k_0
// CHECK-NOT: nvvm.griddepcontrol
// CHECK: %[[I:.*]] = arith.addi
// CHECK: %[[W:.*]] = memref.load %arg1[%[[I]]]
// CHECK: %[[LOW:.*]] = arith.cmpi ult
// CHECK: scf.if %[[LOW]] {
// CHECK-COUNT-3: memref.prefetch %arg2[{{.*}}], read, locality<2>, data : memref<3x64xf32>
// CHECK-NOT: memref.prefetch
// CHECK: nvvm.griddepcontrol launch_dependents
// CHECK-NEXT: nvvm.griddepcontrol wait
// CHECK-NOT: memref.prefetch
// CHECK: memref.load %arg0
// CHECK: memref.load %arg3
// CHECK: scf.for
// CHECK: memref.load %arg2
// CHECK: memref.store
// CHECK: gpu.launch_func @k_gpu::@k_0 {{.*}} {mlirc.dependent}
module attributes {gpu.container_module} {
  gpu.module @k_gpu {
    gpu.func @k_0(%x: memref<64xf32>, %w: memref<65xf32>, %m: memref<3x64xf32>, %t: memref<64xindex>, %y: memref<64xf32>) kernel {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c3 = arith.constant 3 : index
      %c60 = arith.constant 60 : index
      %i = gpu.thread_id x
      %a = memref.load %x[%i] : memref<64xf32>
      %j = arith.addi %i, %c1 : index
      %b = memref.load %w[%j] : memref<65xf32>
      %s = arith.addf %a, %b : f32
      %n = memref.load %t[%i] : memref<64xindex>
      %low = arith.cmpi ult, %i, %c60 : index
      scf.if %low {
        %sum = scf.for %k = %c0 to %c3 step %c1 iter_args(%r = %s) -> (f32) {
          %p = memref.load %m[%k, %i] : memref<3x64xf32>
          %g = memref.load %m[%k, %n] : memref<3x64xf32>
          %q = arith.addf %r, %p : f32
          %v = arith.addf %q, %g : f32
          scf.yield %v : f32
        }
        memref.store %sum, %y[%i] : memref<64xf32>
      }
      gpu.return
    }
  }
  func.func @k(%x: memref<64xf32>, %w: memref<65xf32>, %m: memref<3x64xf32>, %t: memref<64xindex>, %y: memref<64xf32>)
      attributes {mlirc.kernel, mlirc.dependent, mlirc.given = array<i64: 1, 2>} {
    %one = arith.constant 1 : index
    %n = arith.constant 64 : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%one, %one, %one) threads in (%n, %one, %one)
      args(%x : memref<64xf32>, %w : memref<65xf32>, %m : memref<3x64xf32>, %t : memref<64xindex>, %y : memref<64xf32>)
    return
  }
}
