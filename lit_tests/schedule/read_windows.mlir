// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The map that gathers a convolution's windows becomes a view of its image, whose slices im2col copies bring.

// CHECK-LABEL: func.func @convolution
// CHECK-SAME: (%[[X:.*]]: tensor<2x6x8x16xbf16>)
// CHECK: %[[A:.*]] = "mlirc.im2col"(%[[X]]) {mlirc.gather_windows = {channels = 16 : i64, {{.*}}}} : (tensor<2x6x8x16xbf16>) -> tensor<48x64xbf16>
// CHECK-NOT: linalg.generic
// CHECK: return %[[A]]

#id = affine_map<(m, k) -> (m, k)>
module attributes {transform.with_named_sequence} {
  func.func @convolution(%x: tensor<2x6x8x16xbf16>) -> tensor<48x64xbf16> {
    %e = tensor.empty() : tensor<48x64xbf16>
    %c4 = arith.constant 4 : index
    %c8 = arith.constant 8 : index
    %c16 = arith.constant 16 : index
    %c24 = arith.constant 24 : index
    %a = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel"]} outs(%e : tensor<48x64xbf16>)
        attrs = {mlirc.gather_windows = {kernel = array<i64: 4, 1>, out = array<i64: 3, 8>, strides = array<i64: 1, 1>,
                                         dilations = array<i64: 1, 1>, low = array<i64: 0, 0>, channels = 16 : i64}} {
    ^bb0(%out: bf16):
      %m = linalg.index 0 : index
      %k = linalg.index 1 : index
      %n = arith.divui %m, %c24 : index
      %pixel = arith.remui %m, %c24 : index
      %row = arith.divui %pixel, %c8 : index
      %column = arith.remui %pixel, %c8 : index
      %tap = arith.divui %k, %c16 : index
      %channel = arith.remui %k, %c16 : index
      %at = arith.addi %row, %tap : index
      %v = tensor.extract %x[%n, %at, %column, %channel] : tensor<2x6x8x16xbf16>
      linalg.yield %v : bf16
    } -> tensor<48x64xbf16>
    return %a : tensor<48x64xbf16>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %functions = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    "schedule.read_windows"(%functions) : (!transform.any_op) -> ()
    transform.yield
  }
}
