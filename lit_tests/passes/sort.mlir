// RUN: %mlirc-opt %s --pass mlirc-sort | %filecheck %s

// A row of 64 is two elements of each lane of a warp: no shared memory, no barrier.
// CHECK-LABEL: gpu.func @network
// CHECK-NOT: gpu.barrier
// CHECK: gpu.shuffle xor
// CHECK: memref.store %{{.*}} : memref<9x8xf32>

// A block for each row counts digits of 11 bits, and those of places where keys are equal.
// CHECK-LABEL: gpu.func @select
// CHECK: arith.cmpf une
// CHECK: memref.atomic_rmw addi
// CHECK: scf.if
// CHECK: arith.shrui %{{.*}}, %c5_i32 : i32

// Two passes over bf16, three launches each; places go on to the second one.
// CHECK-LABEL: gpu.func @radix_0
// CHECK-LABEL: gpu.func @radix_2
// CHECK: nvvm.match.sync any
// CHECK-LABEL: gpu.func @radix_5
// CHECK: memref.store %{{.*}} : memref<3x9000xi64>
// CHECK: func.func @radix
// CHECK: memref.alloc() : memref<3x256x3xi32>
// CHECK: gpu.launch_func @radix_gpu::@radix_1 blocks in (%c96

func.func @network(%x: tensor<9x64xf32>) -> (tensor<9x8xf32>, tensor<9x8xi64>)
    attributes {mlirc.kernel, mlirc.lowering = "sort", mlirc.way = "network"} {
  %r:2 = "mlirc.sort"(%x) {descending = true} : (tensor<9x64xf32>) -> (tensor<9x8xf32>, tensor<9x8xi64>)
  return %r#0, %r#1 : tensor<9x8xf32>, tensor<9x8xi64>
}
func.func @select(%x: tensor<2x50000xf32>) -> (tensor<2x8xf32>, tensor<2x8xi64>)
    attributes {mlirc.kernel, mlirc.lowering = "sort", mlirc.way = "select"} {
  %r:2 = "mlirc.sort"(%x) {descending = true} : (tensor<2x50000xf32>) -> (tensor<2x8xf32>, tensor<2x8xi64>)
  return %r#0, %r#1 : tensor<2x8xf32>, tensor<2x8xi64>
}
func.func @radix(%x: tensor<3x9000xbf16>) -> (tensor<3x9000xbf16>, tensor<3x9000xi64>)
    attributes {mlirc.kernel, mlirc.lowering = "sort", mlirc.way = "radix"} {
  %r:2 = "mlirc.sort"(%x) {descending = false} : (tensor<3x9000xbf16>) -> (tensor<3x9000xbf16>, tensor<3x9000xi64>)
  return %r#0, %r#1 : tensor<3x9000xbf16>, tensor<3x9000xi64>
}
