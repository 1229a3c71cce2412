// RUN: %mlirc-opt %s --pass 'mlirc-partial-rows{kinds=plain}' | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-partial-rows | %filecheck %s --check-prefix=APART
// RUN: %mlirc-opt %s --pass 'mlirc-partial-rows{kinds=all readers=0}' | %filecheck %s --check-prefix=APART

// A norm between two products: the first one's kernel gives the row times the norm's weight, and the squares of eight columns each added up; the second
// one's sums are multiplied by the row's factor. A norm that is returned, too, stays a launch.

// CHECK-LABEL: func.func @main
// CHECK: %[[Y:.*]]:3 = call @matmul_2(%arg0, %arg1, %arg2, %arg3) {{.*}} -> (tensor<1x48xf32>, tensor<1x48xf32>, tensor<1x6xf32>)
// CHECK: %[[A:.*]] = call @matmul_3(%[[Y]]#1, %arg4, %[[Y]]#2)
// CHECK: %[[V:.*]] = call @matmul_0(
// CHECK: %[[N:.*]] = call @reduction_0(%[[V]], %arg3)
// CHECK: %[[B:.*]] = call @matmul_1(%[[N]], %arg4)
// CHECK: return %[[Y]]#0, %[[A]], %[[N]], %[[B]]

// CHECK: func.func private @matmul_2
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} iterator_types = ["parallel", "parallel"]} ins(%{{.*}}, %arg2 :
// CHECK: arith.addf
// CHECK: %[[ROW:.*]] = linalg.generic {{.*}} ins(%arg3, %[[SUM]] :
// CHECK: arith.mulf
// CHECK: %[[SQUARES:.*]] = linalg.generic {{.*}} ins(%[[SUM]] :
// CHECK: arith.mulf
// CHECK: %[[GROUPS:.*]] = tensor.expand_shape %[[SQUARES]] {{.*}} output_shape [1, 6, 8]
// CHECK: %[[FILL:.*]] = linalg.fill {mlirc.partial}
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]} ins(%[[GROUPS]] : {{.*}}) outs(%[[FILL]] : {{.*}}) attrs = {mlirc.partial}
// CHECK: return %[[SUM]], %[[ROW]], %

// CHECK: func.func private @matmul_3
// CHECK: %[[P:.*]] = linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 :
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]} ins(%arg2 : tensor<1x6xf32>)
// CHECK: %[[R:.*]] = linalg.generic
// CHECK: math.rsqrt
// CHECK: linalg.generic {{.*}} ins(%[[P]], %{{.*}} : tensor<1x20xf32>, tensor<1xf32>)
// CHECK-NEXT: ^bb0
// CHECK-NEXT: arith.mulf

// APART-LABEL: func.func @main
// APART-COUNT-2: call @reduction_0
// APART-NOT: mlirc.partial

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#m_k = affine_map<(m, n, k) -> (m, k)>
#n_k = affine_map<(m, n, k) -> (n, k)>
#m_n = affine_map<(m, n, k) -> (m, n)>
func.func @main(%x: tensor<1x32xf32>, %w: tensor<48x32xf32>, %r: tensor<1x48xf32>, %g: tensor<1x48xf32>, %u: tensor<20x48xf32>)
    -> (tensor<1x48xf32>, tensor<1x20xf32>, tensor<1x48xf32>, tensor<1x20xf32>) {
  %y = call @matmul_0(%x, %w, %r) : (tensor<1x32xf32>, tensor<48x32xf32>, tensor<1x48xf32>) -> tensor<1x48xf32>
  %n = call @reduction_0(%y, %g) : (tensor<1x48xf32>, tensor<1x48xf32>) -> tensor<1x48xf32>
  %a = call @matmul_1(%n, %u) : (tensor<1x48xf32>, tensor<20x48xf32>) -> tensor<1x20xf32>
  %v = call @matmul_0(%x, %w, %y) : (tensor<1x32xf32>, tensor<48x32xf32>, tensor<1x48xf32>) -> tensor<1x48xf32>
  %q = call @reduction_0(%v, %g) : (tensor<1x48xf32>, tensor<1x48xf32>) -> tensor<1x48xf32>
  %b = call @matmul_1(%q, %u) : (tensor<1x48xf32>, tensor<20x48xf32>) -> tensor<1x20xf32>
  return %y, %a, %q, %b : tensor<1x48xf32>, tensor<1x20xf32>, tensor<1x48xf32>, tensor<1x20xf32>
}
func.func private @matmul_0(%x: tensor<1x32xf32>, %w: tensor<48x32xf32>, %r: tensor<1x48xf32>) -> tensor<1x48xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["o"]} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x48xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x48xf32>) -> tensor<1x48xf32>
  %p = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x32xf32>, tensor<48x32xf32>) outs(%f : tensor<1x48xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %t = arith.mulf %a, %b : f32
    %s = arith.addf %c, %t : f32
    linalg.yield %s : f32
  } -> tensor<1x48xf32>
  %y = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%p, %r : tensor<1x48xf32>, tensor<1x48xf32>) outs(%e : tensor<1x48xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<1x48xf32>
  return %y : tensor<1x48xf32>
}
func.func private @reduction_0(%x: tensor<1x48xf32>, %g: tensor<1x48xf32>) -> tensor<1x48xf32>
    attributes {mlirc.kernel, mlirc.kind = "reduction", mlirc.origin = ["norm"]} {
  %zero = arith.constant 0.0 : f32
  %count = arith.constant 48.0 : f32
  %eps = arith.constant 1.0e-06 : f32
  %e = tensor.empty() : tensor<1x48xf32>
  %squares = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<1x48xf32>) outs(%e : tensor<1x48xf32>) {
  ^bb0(%a: f32, %c: f32):
    %t = arith.mulf %a, %a : f32
    linalg.yield %t : f32
  } -> tensor<1x48xf32>
  %e1 = tensor.empty() : tensor<1xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1xf32>) -> tensor<1xf32>
  %sum = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%squares : tensor<1x48xf32>) outs(%f : tensor<1xf32>) {
  ^bb0(%a: f32, %c: f32):
    %t = arith.addf %a, %c : f32
    linalg.yield %t : f32
  } -> tensor<1xf32>
  %factor = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
      ins(%sum : tensor<1xf32>) outs(%e1 : tensor<1xf32>) {
  ^bb0(%a: f32, %c: f32):
    %t = arith.divf %a, %count : f32
    %u = arith.addf %t, %eps : f32
    %v = math.rsqrt %u : f32
    linalg.yield %v : f32
  } -> tensor<1xf32>
  %z = linalg.generic {indexing_maps = [#id, #id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%g, %x, %factor : tensor<1x48xf32>, tensor<1x48xf32>, tensor<1xf32>) outs(%e : tensor<1x48xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32, %c: f32):
    %t = arith.mulf %b, %s : f32
    %u = arith.mulf %a, %t : f32
    linalg.yield %u : f32
  } -> tensor<1x48xf32>
  return %z : tensor<1x48xf32>
}
func.func private @matmul_1(%x: tensor<1x48xf32>, %w: tensor<20x48xf32>) -> tensor<1x20xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["q"]} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x20xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x20xf32>) -> tensor<1x20xf32>
  %p = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x48xf32>, tensor<20x48xf32>) outs(%f : tensor<1x20xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %t = arith.mulf %a, %b : f32
    %s = arith.addf %c, %t : f32
    linalg.yield %s : f32
  } -> tensor<1x20xf32>
  return %p : tensor<1x20xf32>
}
