// RUN: %mlirc-opt %s --pass mlirc-convolutions | %filecheck %s

// A convolution with the pad in front of it is a contraction of the windows of an image that lies channels last; its
// bias is added behind it. A map behind it reads what it makes as it lies, a pooling has its form with channels last, and
// the next convolution reads that: there is one transpose of an image at each end.

#id = affine_map<(n, c, h, w) -> (n, c, h, w)>

// CHECK-DAG: #[[IMAGE:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3, d1)>
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.*]]: tensor<2x8x9x7xbf16>, %[[W:.*]]: tensor<5x8x3x3xbf16>, %[[V:.*]]: tensor<6x5x1x1xbf16>
// CHECK-NOT: tensor.pad
// CHECK: %[[XT:.*]] = linalg.transpose ins(%[[X]] {{.*}} permutation = [0, 2, 3, 1]
// CHECK: linalg.transpose ins(%[[W]] {{.*}} permutation = [0, 2, 3, 1]
// CHECK: %[[WINDOWS:.*]] = linalg.generic {{.*}} outs({{.*}} : tensor<40x72xbf16>) attrs = {mlirc.gather_windows = {channels = 8 : i64, dilations = array<i64: 1, 1>, kernel = array<i64: 3, 3>, low = array<i64: 1, 1>, out = array<i64: 5, 4>, strides = array<i64: 2, 2>}}
// CHECK: tensor.extract %[[XT]][
// CHECK: arith.select
// CHECK: %[[ROWS:.*]] = tensor.collapse_shape {{.*}} : tensor<5x3x3x8xbf16> into tensor<5x72xbf16>
// CHECK: linalg.generic {{.*}}"reduction"]} ins(%[[WINDOWS]], %[[ROWS]]
// CHECK: tensor.expand_shape {{.*}} output_shape [2, 5, 4, 5]
// CHECK: linalg.broadcast ins({{.*}} : tensor<5xf32>) {{.*}} dimensions = [0, 1, 2]
// CHECK: arith.addf
// CHECK-NOT: linalg.transpose
// CHECK: linalg.generic {indexing_maps = [#[[IMAGE]], #[[IMAGE]]]
// CHECK: linalg.pooling_nhwc_max
// CHECK-SAME: -> tensor<2x4x3x5xbf16>
// CHECK: tensor.collapse_shape {{.*}} : tensor<2x4x3x5xbf16> into tensor<24x5xbf16>
// CHECK-NOT: gather_windows
// CHECK: tensor.expand_shape {{.*}} output_shape [2, 4, 3, 6]
// CHECK: linalg.transpose {{.*}} permutation = [0, 3, 1, 2]
// CHECK-NEXT: return
func.func @main(%x: tensor<2x8x9x7xbf16>, %w: tensor<5x8x3x3xbf16>, %v: tensor<6x5x1x1xbf16>, %bias: tensor<5xf32>)
    -> tensor<2x6x4x3xf32> {
  %zero = arith.constant 0.0 : bf16
  %zero32 = arith.constant 0.0 : f32
  %least = arith.constant 0xFF80 : bf16
  %padded = tensor.pad %x low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%a: index, %b: index, %c: index, %d: index):
    tensor.yield %zero : bf16
  } : tensor<2x8x9x7xbf16> to tensor<2x8x11x9xbf16>
  %e = tensor.empty() : tensor<2x5x5x4xf32>
  %start = linalg.broadcast ins(%bias : tensor<5xf32>) outs(%e : tensor<2x5x5x4xf32>) dimensions = [0, 2, 3]
  %y = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>}
      ins(%padded, %w : tensor<2x8x11x9xbf16>, tensor<5x8x3x3xbf16>) outs(%start : tensor<2x5x5x4xf32>) -> tensor<2x5x5x4xf32>
  %f = tensor.empty() : tensor<2x5x5x4xbf16>
  %z = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%y : tensor<2x5x5x4xf32>) outs(%f : tensor<2x5x5x4xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %t = arith.truncf %in : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<2x5x5x4xbf16>
  %g = tensor.empty() : tensor<2x5x4x3xbf16>
  %low = linalg.fill ins(%least : bf16) outs(%g : tensor<2x5x4x3xbf16>) -> tensor<2x5x4x3xbf16>
  %k = tensor.empty() : tensor<2x2xbf16>
  %m = linalg.pooling_nchw_max {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
      ins(%z, %k : tensor<2x5x5x4xbf16>, tensor<2x2xbf16>) outs(%low : tensor<2x5x4x3xbf16>) -> tensor<2x5x4x3xbf16>
  %h = tensor.empty() : tensor<2x6x4x3xf32>
  %zeros = linalg.fill ins(%zero32 : f32) outs(%h : tensor<2x6x4x3xf32>) -> tensor<2x6x4x3xf32>
  %r = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
      ins(%m, %v : tensor<2x5x4x3xbf16>, tensor<6x5x1x1xbf16>) outs(%zeros : tensor<2x6x4x3xf32>) -> tensor<2x6x4x3xf32>
  return %r : tensor<2x6x4x3xf32>
}
