// RUN: %mlirc-opt %s --pass mlirc-loops | %filecheck %s

// A gather takes the nearest element; a scatter leaves out what would be stored outside.
// CHECK-LABEL: gpu.func @gather_0(
// CHECK: %[[I:.*]] = arith.index_cast
// CHECK: %[[LOW:.*]] = arith.maxsi %[[I]], %c0
// CHECK: %[[AT:.*]] = arith.minsi %[[LOW]], %c6
// CHECK: memref.load %{{.*}}[%[[AT]]] : memref<7xf32>
func.func private @gather(%i: tensor<3xi64>, %x: tensor<7xf32>) -> tensor<3xf32>
    attributes {mlirc.kernel, mlirc.lowering = "loops"} {
  %e = tensor.empty() : tensor<3xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d) -> (d)>, affine_map<(d) -> (d)>], iterator_types = ["parallel"]}
      ins(%i : tensor<3xi64>) outs(%e : tensor<3xf32>) {
  ^bb0(%a: i64, %o: f32):
    %c = arith.index_cast %a : i64 to index
    %v = tensor.extract %x[%c] : tensor<7xf32>
    linalg.yield %v : f32
  } -> tensor<3xf32>
  return %r : tensor<3xf32>
}

// CHECK-LABEL: gpu.func @scatter_0(
// CHECK: %[[J:.*]] = arith.index_cast
// CHECK: %[[IN:.*]] = arith.cmpi ult, %[[J]], %c7
// CHECK: scf.if %[[IN]]
// CHECK-NEXT: memref.store %{{.*}}, %{{.*}}[%[[J]]] : memref<7xf32>
func.func private @scatter(%u: tensor<3xf32>, %i: tensor<3x1xi64>, %x: tensor<7xf32>) -> tensor<7xf32>
    attributes {mlirc.kernel, mlirc.lowering = "loops"} {
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(false)
      ins(%u, %i : tensor<3xf32>, tensor<3x1xi64>) outs(%x : tensor<7xf32>) {
  ^bb0(%a: f32, %b: f32):
    tm_tensor.yield %a : f32
  } -> tensor<7xf32>
  return %r : tensor<7xf32>
}

// What a scatter changes is copied before it, by whoever calls it: or not, where both may lie in one place.
// CHECK: func.func private @scatter(%{{.*}}, %{{.*}}, %[[X:.*]]: memref<7xf32>, %[[R:.*]]: memref<7xf32>)
// CHECK: memref.copy %[[X]], %[[R]]
// CHECK-NEXT: gpu.launch_func @scatter_gpu::@scatter_0
