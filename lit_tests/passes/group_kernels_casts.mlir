// RUN: %mlirc-opt %s --pass mlirc-group-kernels | %filecheck %s

// Weights of 8 bits are made 16-bit floats in a kernel of their own, for tensor cores; where few rows are multiplied, it
// is reading them that takes the time, and the product reads them as they are.
// CHECK-LABEL: func.func @main
// CHECK: attrs =  {mlirc.kernels = array<i64: 2>, mlirc.root = 2 : i64}
// CHECK-NEXT: f8E4M3FN
// CHECK: linalg.matmul {mlirc.kernels = array<i64: 1>, mlirc.root = 1 : i64}
// CHECK: attrs =  {mlirc.kernels = array<i64: 0>}
// CHECK-NEXT: i8
// CHECK: linalg.matmul {mlirc.kernels = array<i64: 0>, mlirc.root = 0 : i64}
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<32x64xbf16>, %w: tensor<64x48xf8E4M3FN>, %y: tensor<16x64xbf16>, %v: tensor<64x48xi8>)
    -> (tensor<32x48xf32>, tensor<16x48xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x48xbf16>
  %wide = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%w : tensor<64x48xf8E4M3FN>) outs(%e : tensor<64x48xbf16>) {
  ^bb0(%p: f8E4M3FN, %o: bf16):
    %s = arith.extf %p : f8E4M3FN to bf16
    linalg.yield %s : bf16
  } -> tensor<64x48xbf16>
  %many = tensor.empty() : tensor<32x48xf32>
  %f = linalg.fill ins(%zero : f32) outs(%many : tensor<32x48xf32>) -> tensor<32x48xf32>
  %m = linalg.matmul ins(%x, %wide : tensor<32x64xbf16>, tensor<64x48xbf16>) outs(%f : tensor<32x48xf32>)
      -> tensor<32x48xf32>
  %also = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%v : tensor<64x48xi8>) outs(%e : tensor<64x48xbf16>) {
  ^bb0(%p: i8, %o: bf16):
    %s = arith.sitofp %p : i8 to bf16
    linalg.yield %s : bf16
  } -> tensor<64x48xbf16>
  %few = tensor.empty() : tensor<16x48xf32>
  %g = linalg.fill ins(%zero : f32) outs(%few : tensor<16x48xf32>) -> tensor<16x48xf32>
  %n = linalg.matmul ins(%y, %also : tensor<16x64xbf16>, tensor<64x48xbf16>) outs(%g : tensor<16x48xf32>)
      -> tensor<16x48xf32>
  return %m, %n : tensor<32x48xf32>, tensor<16x48xf32>
}
