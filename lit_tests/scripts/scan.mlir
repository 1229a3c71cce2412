// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script 'scan:step=512,warps=2' | %filecheck %s --check-prefix=KNOBS

// A block for each row, which it walks along, so that x is read once.

// CHECK-LABEL: func.func private @scan_0
// CHECK-SAME: mlirc.warps = 16 : i32
// CHECK: scf.forall (%[[I:.*]]) in (300)
// CHECK: scf.for %[[K:.*]] = %c0 to %c32000 step %c8192
// CHECK: tensor.extract_slice %arg0[%[[I]], %[[K]]]
// CHECK: arith.addf
// CHECK: tensor.insert_slice
// KNOBS: mlirc.warps = 2 : i32
// KNOBS: scf.for {{.*}} step %c512

#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
func.func private @scan_0(%x: tensor<300x32000xf32>) -> tensor<300x32000xf32>
    attributes {mlirc.kernel, mlirc.kind = "scan"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<300x32000xf32>
  %c = tensor.empty() : tensor<300xf32>
  %f = linalg.fill ins(%zero : f32) outs(%c : tensor<300xf32>) -> tensor<300xf32>
  %r:2 = linalg.generic {indexing_maps = [#id, #id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<300x32000xf32>) outs(%e, %f : tensor<300x32000xf32>, tensor<300xf32>) attrs = {mlirc.scan} {
  ^bb0(%in: f32, %out: f32, %carry: f32):
    %0 = arith.addf %carry, %in : f32
    linalg.yield %0, %0 : f32, f32
  } -> (tensor<300x32000xf32>, tensor<300xf32>)
  return %r#0 : tensor<300x32000xf32>
}
