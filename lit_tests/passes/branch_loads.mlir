// RUN: %mlirc-opt %s --pass mlirc-branch-loads | %filecheck %s
// RUN: %mlirc-opt %s --pass 'mlirc-branch-loads{least=2}' | %filecheck %s --check-prefix=TWO

// Of four elements, one is loaded: the conditions come first, and each load stands where it is wanted.

// CHECK-LABEL: gpu.func @four
// CHECK-NOT: memref.load
// CHECK: scf.if %arg4
// CHECK: scf.if %arg5
// CHECK: memref.load %arg0
// CHECK: else
// CHECK: memref.load %arg1
// CHECK: memref.load %arg2
// CHECK: memref.load %arg3
// CHECK: memref.store

// Where a store stands between, or one of them is read twice, they stay; two are too few.

// CHECK-LABEL: gpu.func @stay
// CHECK-NOT: scf.if
// CHECK: gpu.return
// CHECK-LABEL: gpu.func @two
// CHECK-NOT: scf.if
// CHECK: gpu.return

// TWO-LABEL: gpu.func @two
// TWO: scf.if
// TWO-NEXT: vector.load %arg0

gpu.module @k {
  gpu.func @four(%arg0: memref<8xf32>, %arg1: memref<8xf32>, %arg2: memref<8xf32>, %arg3: memref<8xf32>, %arg4: i1, %arg5: i1, %i: index, %out: memref<8xf32>) kernel {
    %0 = memref.load %arg0[%i] : memref<8xf32>
    %1 = memref.load %arg1[%i] : memref<8xf32>
    %2 = arith.select %arg5, %0, %1 : f32
    %3 = memref.load %arg2[%i] : memref<8xf32>
    %4 = memref.load %arg3[%i] : memref<8xf32>
    %5 = arith.select %arg5, %3, %4 : f32
    %6 = arith.select %arg4, %2, %5 : f32
    memref.store %6, %out[%i] : memref<8xf32>
    gpu.return
  }
  gpu.func @stay(%arg0: memref<8xf32>, %arg1: memref<8xf32>, %arg2: memref<8xf32>, %arg3: memref<8xf32>, %arg4: i1, %arg5: i1, %i: index, %out: memref<8xf32>) kernel {
    %0 = memref.load %arg0[%i] : memref<8xf32>
    %1 = memref.load %arg1[%i] : memref<8xf32>
    %2 = arith.select %arg5, %0, %1 : f32
    %3 = memref.load %arg2[%i] : memref<8xf32>
    %4 = memref.load %arg3[%i] : memref<8xf32>
    memref.store %4, %arg0[%i] : memref<8xf32>
    %5 = arith.select %arg5, %3, %1 : f32
    %6 = arith.select %arg4, %2, %5 : f32
    memref.store %6, %out[%i] : memref<8xf32>
    gpu.return
  }
  gpu.func @two(%arg0: memref<8xf32>, %arg1: memref<8xf32>, %arg4: i1, %i: index, %out: memref<8xf32>) kernel {
    %0 = vector.load %arg0[%i] : memref<8xf32>, vector<4xf32>
    %1 = vector.load %arg1[%i] : memref<8xf32>, vector<4xf32>
    %2 = arith.select %arg4, %0, %1 : vector<4xf32>
    vector.store %2, %out[%i] : memref<8xf32>, vector<4xf32>
    gpu.return
  }
}
