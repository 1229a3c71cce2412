// RUN: %mlirc-opt %s --pass mlirc-loops | %filecheck %s

// A fill, the product over it and an elementwise op of the same extents are one launch; the reduction is serial.
// CHECK-LABEL: gpu.module @row_sum_gpu
// CHECK: gpu.func @row_sum_0(%{{.*}}: memref<5xf32>, %{{.*}}: memref<5x7xf32>) kernel attributes {known_block_size = array<i32: 32, 1, 1>}
// CHECK: %[[POINT:.*]] = arith.addi
// CHECK: %[[INSIDE:.*]] = arith.cmpi ult, %[[POINT]]
// CHECK: scf.if %[[INSIDE]]
// CHECK: scf.for
// CHECK: math.sqrt
// CHECK: gpu.return
// CHECK-NOT: gpu.func
// CHECK: func.func private @row_sum(%[[X:.*]]: memref<5x7xf32>, %[[Y:.*]]: memref<5xf32>)
// CHECK-NOT: memref.alloc
// CHECK: gpu.launch_func @row_sum_gpu::@row_sum_0 {{.*}} args(%[[Y]] : memref<5xf32>, %[[X]] : memref<5x7xf32>)
func.func private @row_sum(%x: tensor<5x7xf32>) -> tensor<5xf32>
    attributes {mlirc.kernel, mlirc.lowering = "loops", mlirc.threads = 32 : i32} {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<5xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<5xf32>) -> tensor<5xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : tensor<5x7xf32>) outs(%f : tensor<5xf32>) {
  ^bb0(%a: f32, %o: f32):
    %t = arith.addf %a, %o : f32
    linalg.yield %t : f32
  } -> tensor<5xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%s : tensor<5xf32>) outs(%e : tensor<5xf32>) {
  ^bb0(%a: f32, %o: f32):
    %t = math.sqrt %a : f32
    linalg.yield %t : f32
  } -> tensor<5xf32>
  return %r : tensor<5xf32>
}
