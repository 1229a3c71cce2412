// RUN: %mlirc-opt %s --script auto | %filecheck %s

// A chain over [1, 64, 384] with a bias: two dimensions, one tile per block, 8 bf16 per thread.

// CHECK-LABEL: func.func private @elementwise_0
// CHECK-SAME: mlirc.warps = 4 : i32
// CHECK: tensor.collapse_shape %arg0 {{\[\[}}0, 1], [2]]
// CHECK: scf.forall
// CHECK: linalg.generic
// CHECK-SAME: mlirc.vector = 8 : i32
// CHECK: tensor.parallel_insert_slice
// CHECK: tensor.expand_shape

// A transpose: the tile is square in the two innermost dimensions.

// CHECK-LABEL: func.func private @elementwise_1
// CHECK: scf.forall {{.*}} in (8, 16)
// CHECK: tensor.extract_slice {{.*}} [16, 32] [1, 1] : tensor<256x256xf32> to tensor<16x32xf32>

// A gather: the table is read in the body, by the index of the block's tile.

// CHECK-LABEL: func.func private @gather_0
// CHECK: scf.forall
// CHECK: tensor.extract %arg0

// Nothing to compute: nothing is launched.

// CHECK-LABEL: func.func private @elementwise_2
// CHECK-NOT: scf.forall
// CHECK: return

#id3 = affine_map<(a, b, c) -> (a, b, c)>
#last = affine_map<(a, b, c) -> (c)>
#id = affine_map<(a, b) -> (a, b)>
#t = affine_map<(a, b) -> (b, a)>
#row = affine_map<(a, b) -> (a)>
func.func private @elementwise_0(%x: tensor<1x64x384xbf16>, %b: tensor<384xbf16>) -> tensor<1x64x384xbf16>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<1x64x384xbf16>
  %r = linalg.generic {indexing_maps = [#id3, #last, #id3], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %b : tensor<1x64x384xbf16>, tensor<384xbf16>) outs(%e : tensor<1x64x384xbf16>) {
  ^bb0(%l: bf16, %r: bf16, %out: bf16):
    %0 = arith.addf %l, %r : bf16
    linalg.yield %0 : bf16
  } -> tensor<1x64x384xbf16>
  return %r : tensor<1x64x384xbf16>
}
func.func private @elementwise_1(%x: tensor<256x256xf32>) -> tensor<256x256xf32>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<256x256xf32>
  %r = linalg.generic {indexing_maps = [#t, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<256x256xf32>) outs(%e : tensor<256x256xf32>) {
  ^bb0(%l: f32, %out: f32):
    linalg.yield %l : f32
  } -> tensor<256x256xf32>
  return %r : tensor<256x256xf32>
}
func.func private @gather_0(%t: tensor<100x64xf32>, %ids: tensor<7xi64>) -> tensor<7x64xf32>
    attributes {mlirc.kernel, mlirc.kind = "gather"} {
  %e = tensor.empty() : tensor<7x64xf32>
  %r = linalg.generic {indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%ids : tensor<7xi64>) outs(%e : tensor<7x64xf32>) {
  ^bb0(%id: i64, %out: f32):
    %i = arith.index_cast %id : i64 to index
    %j = linalg.index 1 : index
    %v = tensor.extract %t[%i, %j] : tensor<100x64xf32>
    linalg.yield %v : f32
  } -> tensor<7x64xf32>
  return %r : tensor<7x64xf32>
}
func.func private @elementwise_2(%x: tensor<0x4xf32>) -> tensor<0x4xf32>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<0x4xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<0x4xf32>) outs(%e : tensor<0x4xf32>) {
  ^bb0(%l: f32, %out: f32):
    %0 = arith.negf %l : f32
    linalg.yield %0 : f32
  } -> tensor<0x4xf32>
  return %r : tensor<0x4xf32>
}
