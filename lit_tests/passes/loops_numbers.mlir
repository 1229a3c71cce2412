// RUN: %mlirc-opt %s --pass mlirc-loops | %filecheck %s

// A number that one launch makes and another one's values need: its blocks do not stand beside those that need it.
// CHECK-LABEL: gpu.func @k_0
// CHECK: memref.store %{{.*}}, %{{.*}}[] : memref<f32>
// CHECK-NOT: arith.divf
// CHECK-LABEL: gpu.func @k_1
// CHECK: memref.load %{{.*}}[] : memref<f32>
// CHECK: arith.divf
// CHECK: gpu.launch_func @k_gpu::@k_0
// CHECK: gpu.launch_func @k_gpu::@k_1
func.func private @k(%x: tensor<41xf32>) -> tensor<41xf32>
    attributes {mlirc.kernel, mlirc.lowering = "loops"} {
  %z = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<f32>
  %f = linalg.fill ins(%z : f32) outs(%e0 : tensor<f32>) -> tensor<f32>
  %s = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> ()>],
      iterator_types = ["reduction"]} ins(%x : tensor<41xf32>) outs(%f : tensor<f32>) {
  ^bb0(%a: f32, %o: f32):
    %m = arith.maximumf %a, %o : f32
    linalg.yield %m : f32
  } -> tensor<f32>
  %v = tensor.extract %s[] : tensor<f32>
  %e = tensor.empty() : tensor<41xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]} ins(%x : tensor<41xf32>) outs(%e : tensor<41xf32>) {
  ^bb0(%a: f32, %o: f32):
    %d = arith.divf %a, %v : f32
    linalg.yield %d : f32
  } -> tensor<41xf32>
  return %r : tensor<41xf32>
}
