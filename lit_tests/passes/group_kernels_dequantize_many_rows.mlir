// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s

// A marked map has a kernel of its own where more than 128 rows are multiplied: it is unpacked once for all of them.

#id = affine_map<(d0, d1) -> (d0, d1)>
#word = affine_map<(d0, d1) -> (d0, (d1 floordiv 16) * 4 + (d1 mod 8) floordiv 2)>

// CHECK-LABEL: func.func @main
// CHECK: %[[W:.*]] = call @elementwise_0(%arg1)
// CHECK: call @matmul_0(%arg0, %[[W]])
func.func @main(%x: tensor<129x48xbf16>, %words: tensor<40x12xi32>) -> tensor<129x40xf32> {
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
  %et = tensor.empty() : tensor<48x40xbf16>
  %t = linalg.transpose ins(%w : tensor<40x48xbf16>) outs(%et : tensor<48x40xbf16>) permutation = [1, 0]
  %r = tensor.empty() : tensor<129x40xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r : tensor<129x40xf32>) -> tensor<129x40xf32>
  %y = linalg.matmul ins(%x, %t : tensor<129x48xbf16>, tensor<48x40xbf16>) outs(%f : tensor<129x40xf32>) -> tensor<129x40xf32>
  return %y : tensor<129x40xf32>
}
