// RUN: %mlirc-opt %s --script matmul --pass mlirc-async --pass mlirc-distribute --pass mlirc-dependent-launches | %filecheck %s

// A product with a producer: the lane that copies the weights has their first tiles brought into the L2 cache.
// CHECK-LABEL: gpu.func @k
// CHECK-NOT: nvvm.griddepcontrol
// CHECK: nvvm.mbarrier.init
// CHECK: gpu.barrier
// CHECK: scf.if
// CHECK: scf.if
// CHECK-COUNT-8: nvvm.cp.async.bulk.tensor.prefetch %[[W:arg.]], box[
// CHECK-NOT: nvvm.cp.async.bulk.tensor.prefetch
// CHECK: nvvm.griddepcontrol launch_dependents
// CHECK-NEXT: nvvm.griddepcontrol wait
// CHECK: nvvm.cp.async.bulk.tensor.shared.cluster.global {{.*}}, %[[W]],
#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func @k(%a: tensor<64x1024xbf16>, %b: tensor<512x1024xbf16>) -> tensor<64x512xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.dependent, mlirc.given = array<i64: 1>} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x512xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<64x512xf32>) -> tensor<64x512xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<64x1024xbf16>, tensor<512x1024xbf16>) outs(%f : tensor<64x512xf32>) {
  ^bb0(%x: bf16, %y: bf16, %s: f32):
    %xe = arith.extf %x : bf16 to f32
    %ye = arith.extf %y : bf16 to f32
    %m = arith.mulf %xe, %ye : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  } -> tensor<64x512xf32>
  return %p : tensor<64x512xf32>
}
