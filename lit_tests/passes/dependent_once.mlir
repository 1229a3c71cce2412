// RUN: %mlirc-opt %s --pass mlirc-dependent-launches | %filecheck %s

// Words that a thread reads once (nontemporal) are not prefetched: the first ones are loaded in front of the wait, the
// others in the loop behind it. However many these are, the next launch begins before.
// CHECK-LABEL: gpu.func @k_0
// CHECK-NOT: memref.prefetch
// CHECK: vector.load %arg1[%{{.*}}] {nontemporal = true}
// CHECK: nvvm.griddepcontrol launch_dependents
// CHECK-NEXT: nvvm.griddepcontrol wait
// CHECK: scf.for
// CHECK: vector.load %arg2[%{{.*}}] {nontemporal = true}
// CHECK-NOT: griddepcontrol
module attributes {gpu.container_module} {
  gpu.module @k_gpu {
    gpu.func @k_0(%x: memref<64xi32>, %w: memref<256xi32>, %m: memref<200x256xi32>, %y: memref<64xi32>) kernel {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %c200 = arith.constant 200 : index
      %i = gpu.thread_id x
      %a = memref.load %x[%i] : memref<64xi32>
      %j = arith.muli %i, %c4 : index
      %b = vector.load %w[%j] {nontemporal = true} : memref<256xi32>, vector<4xi32>
      %sum = scf.for %k = %c0 to %c200 step %c1 iter_args(%r = %b) -> (vector<4xi32>) {
        %p = vector.load %m[%k, %j] {nontemporal = true} : memref<200x256xi32>, vector<4xi32>
        %q = arith.addi %r, %p : vector<4xi32>
        scf.yield %q : vector<4xi32>
      }
      %s = vector.reduction <add>, %sum : vector<4xi32> into i32
      %t = arith.addi %a, %s : i32
      memref.store %t, %y[%i] : memref<64xi32>
      gpu.return
    }
  }
  func.func @k(%x: memref<64xi32>, %w: memref<256xi32>, %m: memref<200x256xi32>, %y: memref<64xi32>)
      attributes {mlirc.kernel, mlirc.dependent, mlirc.given = array<i64: 1, 2>} {
    %one = arith.constant 1 : index
    %n = arith.constant 64 : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%one, %one, %one) threads in (%n, %one, %one)
      args(%x : memref<64xi32>, %w : memref<256xi32>, %m : memref<200x256xi32>, %y : memref<64xi32>)
    return
  }
}
