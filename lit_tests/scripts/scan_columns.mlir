// RUN: %mlirc-opt %s --script auto | %filecheck %s

// Along the middle dimension: a thread for each four of 4 x 100 columns, 16 elements of each at a time.

// CHECK-LABEL: func.func private @scan_0
// CHECK: scf.forall (%[[I:.*]]) in (750)
// CHECK: scf.for %[[K:.*]] = %c0 to %c40 step %c16
// CHECK: tensor.extract_slice %arg0[%{{.*}}, %[[K]], 0] [4, %{{.*}}, 100]
// CHECK: arith.addf
// CHECK: tensor.insert_slice {{.*}} [4, %{{.*}}, 100]

#id = affine_map<(i, j, k) -> (i, j, k)>
#row = affine_map<(i, j, k) -> (i, k)>
func.func private @scan_0(%x: tensor<3000x40x100xf32>) -> tensor<3000x40x100xf32>
    attributes {mlirc.kernel, mlirc.kind = "scan"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3000x40x100xf32>
  %c = tensor.empty() : tensor<3000x100xf32>
  %f = linalg.fill ins(%zero : f32) outs(%c : tensor<3000x100xf32>) -> tensor<3000x100xf32>
  %r:2 = linalg.generic {indexing_maps = [#id, #id, #row], iterator_types = ["parallel", "reduction", "parallel"]}
      ins(%x : tensor<3000x40x100xf32>) outs(%e, %f : tensor<3000x40x100xf32>, tensor<3000x100xf32>)
      attrs = {mlirc.scan} {
  ^bb0(%in: f32, %out: f32, %carry: f32):
    %0 = arith.addf %carry, %in : f32
    linalg.yield %0, %0 : f32, f32
  } -> (tensor<3000x40x100xf32>, tensor<3000x100xf32>)
  return %r#0 : tensor<3000x40x100xf32>
}
