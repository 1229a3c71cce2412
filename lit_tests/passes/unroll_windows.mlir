// RUN: %mlirc-opt %s --pass mlirc-unroll-windows | %filecheck %s
// RUN: %mlirc-opt %s --pass 'mlirc-unroll-windows{taps=3}' | %filecheck %s --check-prefix=FEW

// A depthwise convolution: a slice of the padded image, and one of the weights, for each of 1x2 taps; the sum begins with
// what is given.
// CHECK-LABEL: func.func @main
// CHECK-NOT: linalg.depthwise
// CHECK: %[[P0:.*]] = tensor.pad %arg0 low[0, 0, 1, 0] high[0, 0, 0, 0]
// CHECK: %[[X0:.*]] = tensor.extract_slice %[[P0]][0, 0, 0, 0] [2, 5, 4, 8] [1, 1, 2, 1] : tensor<2x5x9x8xbf16> to tensor<2x5x4x8xbf16>
// CHECK: %[[W0:.*]] = tensor.extract_slice %arg1[0, 0, 0] [1, 1, 8] [1, 1, 1] : tensor<1x2x8xbf16> to tensor<8xbf16>
// CHECK: %[[P1:.*]] = tensor.pad %arg0
// CHECK: %[[X1:.*]] = tensor.extract_slice %[[P1]][0, 0, 1, 0] [2, 5, 4, 8] [1, 1, 2, 1]
// CHECK: %[[W1:.*]] = tensor.extract_slice %arg1[0, 1, 0] [1, 1, 8]
// CHECK: %[[Y:.*]] = linalg.generic
// CHECK-SAME: ins(%arg2, %[[X0]], %[[W0]], %[[X1]], %[[W1]] :
// CHECK: ^bb0(%[[INIT:[^:]*]]: f32, %[[A:[^:]*]]: bf16, %{{.*}}: bf16, %{{.*}}: bf16, %{{.*}}: bf16, %{{.*}}: f32):
// CHECK: arith.extf %[[A]]
// CHECK: %[[S:.*]] = arith.addf %[[INIT]], %{{.*}} : f32
// CHECK: %[[T:.*]] = arith.addf %[[S]], %{{.*}} : f32
// CHECK: linalg.yield %[[T]]
// FEW-LABEL: func.func @main
// FEW-NOT: linalg.depthwise

// A maximum over 2x2 elements of what is widened in front of the padding: the narrow tensor is padded, and each element
// widened in the map. With at most 3 elements it stays.
// CHECK-NOT: linalg.pooling
// CHECK: arith.constant 0xFF80 : bf16
// CHECK: tensor.pad %arg3
// CHECK: linalg.generic
// CHECK-COUNT-4: arith.maximumf
// FEW: linalg.pooling_nchw_max
func.func @main(%x: tensor<2x5x8x8xbf16>, %w: tensor<1x2x8xbf16>, %init: tensor<2x5x4x8xf32>, %z: tensor<1x3x4x4xbf16>)
    -> (tensor<2x5x4x8xf32>, tensor<1x3x4x4xf32>) {
  %zero = arith.constant 0.0 : bf16
  %pad = tensor.pad %x low[0, 0, 1, 0] high[0, 0, 0, 0] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %zero : bf16
  } : tensor<2x5x8x8xbf16> to tensor<2x5x9x8xbf16>
  %y = linalg.depthwise_conv_2d_nhwc_hwc {dilations = dense<1> : vector<2xi64>, strides = dense<[1, 2]> : vector<2xi64>}
      ins(%pad, %w : tensor<2x5x9x8xbf16>, tensor<1x2x8xbf16>) outs(%init : tensor<2x5x4x8xf32>) -> tensor<2x5x4x8xf32>
  %e = tensor.empty() : tensor<1x3x4x4xf32>
  %wide = linalg.generic {indexing_maps = [affine_map<(a, b, c, d) -> (a, b, c, d)>, affine_map<(a, b, c, d) -> (a, b, c, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%z : tensor<1x3x4x4xbf16>) outs(%e : tensor<1x3x4x4xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %b = arith.extf %a : bf16 to f32
    linalg.yield %b : f32
  } -> tensor<1x3x4x4xf32>
  %low = arith.constant 0xFF800000 : f32
  %around = tensor.pad %wide low[0, 0, 1, 0] high[0, 0, 0, 1] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %low : f32
  } : tensor<1x3x4x4xf32> to tensor<1x3x5x5xf32>
  %window = tensor.empty() : tensor<2x2xf32>
  %start = linalg.fill ins(%low : f32) outs(%e : tensor<1x3x4x4xf32>) -> tensor<1x3x4x4xf32>
  %m = linalg.pooling_nchw_max {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
      ins(%around, %window : tensor<1x3x5x5xf32>, tensor<2x2xf32>) outs(%start : tensor<1x3x4x4xf32>) -> tensor<1x3x4x4xf32>
  return %y, %m : tensor<2x5x4x8xf32>, tensor<1x3x4x4xf32>
}
