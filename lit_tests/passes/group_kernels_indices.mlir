// RUN: %mlirc-opt %s --pass mlirc-group-kernels | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s --check-prefix=KERNELS

// Small maps of positions are computed again where they are read: the angles, which nobody else needs, in both kernels
// that read them; the next position, which is a result, too, in the one that reads it. What is of floats alone is not.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic
// CHECK-SAME: attrs =  {mlirc.kernels = array<i64: [[OWN:[0-9]+]]>, mlirc.root = [[OWN]] : i64} {
// CHECK: arith.addi
// CHECK: linalg.generic
// CHECK-SAME: attrs =  {mlirc.kernels = array<i64: [[MASK:[0-9]+]]>} {
// CHECK: arith.addi
// CHECK: linalg.generic
// CHECK-SAME: attrs =  {mlirc.kernels = array<i64: {{[0-9]+}}, {{[0-9]+}}>} {
// CHECK: arith.sitofp
// CHECK: math.cos
// CHECK: math.sin
// CHECK: linalg.generic
// CHECK-SAME: attrs =  {mlirc.kernels = array<i64: {{[0-9]+}}>, mlirc.root = {{[0-9]+}} : i64} {
// CHECK: arith.negf
// CHECK: arith.mulf
// CHECK: linalg.generic
// CHECK-SAME: mlirc.root = [[MASK]] : i64
// CHECK: arith.select

// KERNELS-LABEL: func.func @main(%arg0: tensor<5xi64>
// KERNELS-DAG: call @{{.*}}(%arg0) : (tensor<5xi64>) -> tensor<5xi64>
// KERNELS-DAG: call @{{.*}}(%arg1, %arg0) : (tensor<5xi1>, tensor<5xi64>) -> tensor<5xi64>
// KERNELS-DAG: %[[N:.*]] = call @{{.*}}(%arg2) : (tensor<5xf32>) -> tensor<5xf32>

#id = affine_map<(d0) -> (d0)>
func.func @main(%position: tensor<5xi64>, %active: tensor<5xi1>, %x: tensor<5xf32>)
    -> (tensor<5xi64>, tensor<5xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xi64>) {
  %one = arith.constant 1 : i64
  %ei = tensor.empty() : tensor<5xi64>
  %ef = tensor.empty() : tensor<5xf32>
  %next = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%position : tensor<5xi64>) outs(%ei : tensor<5xi64>) {
  ^bb0(%a: i64, %o: i64):
    %r = arith.addi %a, %one : i64
    linalg.yield %r : i64
  } -> tensor<5xi64>
  %angle = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%position : tensor<5xi64>) outs(%ef : tensor<5xf32>) {
  ^bb0(%a: i64, %o: f32):
    %r = arith.sitofp %a : i64 to f32
    linalg.yield %r : f32
  } -> tensor<5xf32>
  %cos = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%angle : tensor<5xf32>) outs(%ef : tensor<5xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = math.cos %a : f32
    linalg.yield %r : f32
  } -> tensor<5xf32>
  %sin = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%angle : tensor<5xf32>) outs(%ef : tensor<5xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = math.sin %a : f32
    linalg.yield %r : f32
  } -> tensor<5xf32>
  %negated = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%x : tensor<5xf32>) outs(%ef : tensor<5xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.negf %a : f32
    linalg.yield %r : f32
  } -> tensor<5xf32>
  %more = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%negated : tensor<5xf32>) outs(%ef : tensor<5xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.mulf %a, %a : f32
    linalg.yield %r : f32
  } -> tensor<5xf32>
  %moved = linalg.generic {indexing_maps = [#id, #id, #id, #id], iterator_types = ["parallel"]}
      ins(%active, %next, %position : tensor<5xi1>, tensor<5xi64>, tensor<5xi64>) outs(%ei : tensor<5xi64>) {
  ^bb0(%c: i1, %a: i64, %b: i64, %o: i64):
    %r = arith.select %c, %a, %b : i64
    linalg.yield %r : i64
  } -> tensor<5xi64>
  return %next, %cos, %sin, %negated, %more, %moved
      : tensor<5xi64>, tensor<5xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xf32>, tensor<5xi64>
}
