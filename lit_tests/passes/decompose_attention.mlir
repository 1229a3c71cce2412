// RUN: %mlirc-opt %s --pass mlirc-decompose-attention | %filecheck %s

// Grouped heads: q is split into (key head, group); k and v are read as they are.
// CHECK-LABEL: func.func @grouped_causal
// CHECK-NOT: mlirc.attention
// CHECK: tensor.expand_shape %{{.*}} {{\[\[}}0], [1, 2], [3], [4]] output_shape [1, 2, 2, 3, 8]
// CHECK: linalg.generic
// CHECK-SAME: iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "reduction"]
// CHECK-SAME: tensor<1x2x2x3x8xbf16>, tensor<1x2x5x8xbf16>
// CHECK: arith.extf
// CHECK-DAG: linalg.index 3
// CHECK-DAG: linalg.index 4
// CHECK: arith.cmpi sle
// CHECK: arith.maximumf
// CHECK: math.exp
// CHECK: arith.divf
// CHECK: arith.truncf
// CHECK: tensor.collapse_shape
// CHECK-SAME: into tensor<1x4x3x8xbf16>
func.func @grouped_causal(%q: tensor<1x4x3x8xbf16>, %k: tensor<1x2x5x8xbf16>) -> tensor<1x4x3x8xbf16> {
  %o = "mlirc.attention"(%q, %k, %k) {scale = 0.5 : f64, causal = true, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<1x4x3x8xbf16>, tensor<1x2x5x8xbf16>, tensor<1x2x5x8xbf16>) -> tensor<1x4x3x8xbf16>
  return %o : tensor<1x4x3x8xbf16>
}

// A padding mask selects; no causal comparison is made; layouts become indexing maps.
// CHECK-LABEL: func.func @padding
// CHECK-NOT: mlirc.attention
// CHECK-NOT: arith.cmpi
// CHECK: arith.select %{{.*}}, %{{.*}}, %{{.*}} : f32
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<2x3x4x8xf32>)
func.func @padding(%q: tensor<2x3x4x8xf32>, %m: tensor<2x1x1x3xi1>) -> tensor<2x3x4x8xf32> {
  %o = "mlirc.attention"(%q, %q, %q, %m) {scale = 0.5 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bshd", "bshd", "bshd", "bshd"]}
    : (tensor<2x3x4x8xf32>, tensor<2x3x4x8xf32>, tensor<2x3x4x8xf32>, tensor<2x1x1x3xi1>) -> tensor<2x3x4x8xf32>
  return %o : tensor<2x3x4x8xf32>
}

// A table is read where key and query say.
// CHECK-LABEL: func.func @table
// CHECK-SAME: %[[TABLE:arg[0-9]+]]: tensor<3x6xf32>
// CHECK-NOT: mlirc.table_attention
// CHECK: tensor.extract %[[TABLE]]{{\[%.*, %.*\]}} : tensor<3x6xf32>
// CHECK: math.exp
func.func @table(%q: tensor<2x3x4x8xf32>, %k: tensor<2x3x3x8xf32>, %t: tensor<3x6xf32>) -> tensor<2x3x4x8xf32> {
  %o = "mlirc.table_attention"(%q, %k, %k, %t) {scale = 0.5 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"], score = ["%0 = arith.subi %j, %i : index",
      "%1 = arith.constant 3 : index", "%2 = arith.addi %0, %1 : index",
      "%3 = tensor.extract %in0[%h, %2] : tensor<3x6xf32>", "%4 = arith.addf %score, %3 : f32", "return %4 : f32"]}
    : (tensor<2x3x4x8xf32>, tensor<2x3x3x8xf32>, tensor<2x3x3x8xf32>, tensor<3x6xf32>) -> tensor<2x3x4x8xf32>
  return %o : tensor<2x3x4x8xf32>
}

// A head's sink is part of the sum that the result is divided by.
// CHECK-LABEL: func.func @sinks
// CHECK-NOT: mlirc.sink_attention
// CHECK: arith.select %{{.*}}, %{{.*}}, %{{.*}} : f32
// CHECK: arith.maximumf
// CHECK: %[[HEAD:.*]] = arith.addi
// CHECK: %[[SINK:.*]] = tensor.extract %arg1[%[[HEAD]]] : tensor<4xf16>
// CHECK: arith.extf %[[SINK]]
// CHECK: math.exp
// CHECK: %[[ALL:.*]] = arith.addf
// CHECK: arith.divf %{{.*}}, %[[ALL]]
func.func @sinks(%q: tensor<1x4x3x8xf32>, %sinks: tensor<4xf16>, %k: tensor<1x2x5x8xf32>, %m: tensor<1x1x1x5xi1>) -> tensor<1x4x3x8xf32> {
  %o = "mlirc.sink_attention"(%q, %k, %k, %sinks, %m) {scale = 0.5 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<1x4x3x8xf32>, tensor<1x2x5x8xf32>, tensor<1x2x5x8xf32>, tensor<4xf16>, tensor<1x1x1x5xi1>) -> tensor<1x4x3x8xf32>
  return %o : tensor<1x4x3x8xf32>
}

// A cache in pages: keys and values are gathered, zero behind each sequence's length; indices stay inside of dimensions.
// CHECK-LABEL: func.func @cached
// CHECK-NOT: mlirc.cached_attention
// CHECK: %[[PAGE:.*]] = tensor.extract %arg2
// CHECK: arith.maxsi {{.*}} {mlirc.index_below = 7 : i64}
// CHECK: arith.minsi {{.*}} {mlirc.index_below = 7 : i64}
// CHECK: arith.remui
// CHECK: %[[LENGTH:.*]] = tensor.extract %arg3
// CHECK: arith.minsi {{.*}} {mlirc.index_below = 31 : i64}
// CHECK: tensor.extract %arg1
// CHECK: arith.select
// CHECK: tensor<2x2x30x8xf16>
func.func @cached(%q: tensor<2x4x3x8xf16>, %k: tensor<7x2x5x8xf16>, %t: tensor<2x6xi64>, %n: tensor<2xi64>)
    -> tensor<2x4x3x8xf16> {
  %o = "mlirc.cached_attention"(%q, %k, %k, %t, %n) {scale = 0.5 : f64, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<2x4x3x8xf16>, tensor<7x2x5x8xf16>, tensor<7x2x5x8xf16>, tensor<2x6xi64>, tensor<2xi64>)
    -> tensor<2x4x3x8xf16>
  return %o : tensor<2x4x3x8xf16>
}
