// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s

// A marked map is computed in the kernels of the products that read it, also where many rows are multiplied; in each of
// them, if several do. Without the mark it has a kernel of its own.

#id = affine_map<(d0, d1) -> (d0, d1)>
#word = affine_map<(d0, d1) -> (d0, (d1 floordiv 16) * 4 + (d1 mod 8) floordiv 2)>

// CHECK-LABEL: func.func @main
// CHECK: call @elementwise_0(%arg1)
// CHECK: call @matmul_0(%arg0, %arg1)
// CHECK: call @matmul_1
// CHECK-LABEL: func.func private @elementwise_0
// CHECK-LABEL: func.func private @matmul_0(
// CHECK: linalg.generic {{.*}} outs({{.*}} : tensor<40x48xbf16>) attrs = {mlirc.dequantize}
// CHECK: tensor.extract %arg1
// CHECK: linalg.generic {{.*}}"reduction"]} ins(%arg0, {{.*}} : tensor<64x48xbf16>, tensor<40x48xbf16>)
// CHECK-LABEL: func.func private @matmul_1(%arg0: tensor<64x48xbf16>, %arg1: tensor<40x48xbf16>)
func.func @main(%x: tensor<64x48xbf16>, %words: tensor<40x12xi32>) -> (tensor<64x40xf32>, tensor<64x40xf32>) {
  %zero = arith.constant 0.0 : f32
  %c3 = arith.constant 3 : i32
  %e = tensor.empty() : tensor<40x48xbf16>
  %w = linalg.generic {indexing_maps = [#word, #id], iterator_types = ["parallel", "parallel"]}
      ins(%words : tensor<40x12xi32>) outs(%e : tensor<40x48xbf16>) attrs = {mlirc.dequantize} {
  ^bb0(%in: i32, %out: bf16):
    %0 = arith.andi %in, %c3 : i32
    %1 = arith.sitofp %0 : i32 to bf16
    linalg.yield %1 : bf16
  } -> tensor<40x48xbf16>
  %v = linalg.generic {indexing_maps = [#word, #id], iterator_types = ["parallel", "parallel"]}
      ins(%words : tensor<40x12xi32>) outs(%e : tensor<40x48xbf16>) {
  ^bb0(%in: i32, %out: bf16):
    %0 = arith.andi %in, %c3 : i32
    %1 = arith.sitofp %0 : i32 to bf16
    linalg.yield %1 : bf16
  } -> tensor<40x48xbf16>
  %et = tensor.empty() : tensor<48x40xbf16>
  %t = linalg.transpose ins(%w : tensor<40x48xbf16>) outs(%et : tensor<48x40xbf16>) permutation = [1, 0]
  %u = linalg.transpose ins(%v : tensor<40x48xbf16>) outs(%et : tensor<48x40xbf16>) permutation = [1, 0]
  %r = tensor.empty() : tensor<64x40xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r : tensor<64x40xf32>) -> tensor<64x40xf32>
  %y = linalg.matmul ins(%x, %t : tensor<64x48xbf16>, tensor<48x40xbf16>) outs(%f : tensor<64x40xf32>) -> tensor<64x40xf32>
  %z = linalg.matmul ins(%x, %u : tensor<64x48xbf16>, tensor<48x40xbf16>) outs(%f : tensor<64x40xf32>) -> tensor<64x40xf32>
  return %y, %z : tensor<64x40xf32>, tensor<64x40xf32>
}
