// RUN: %mlirc-opt %s --pass mlirc-fuse-row-writes | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-fuse-row-writes --script auto | %filecheck %s --check-prefix=TILES

// Two heads of queries are rotated, one of keys is rotated and written, one of values is written: all by the blocks of the
// product, which compute the halves of heads. A product that somebody else reads, too, stays a launch of its own.

// CHECK-LABEL: func.func @main
// CHECK: %[[R:.*]]:3 = call @matmul_1(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6)
// CHECK: %[[P:.*]] = call @matmul_0(%arg0, %arg1)
// CHECK: %[[S:.*]]:3 = call @bundle_0(%arg2, %arg3, %[[P]], %arg4, %[[R]]#1, %[[R]]#2)
// CHECK: return %[[R]]#0, %[[S]]#0, %[[S]]#1, %[[S]]#2, %[[P]]

// CHECK: func.func private @matmul_1
// CHECK-SAME: mlirc.kind = "matmul", mlirc.origin = ["qkv", "rotation"]
// CHECK: %[[W:.*]] = tensor.expand_shape %arg1 {{.*}} output_shape [4, 2, 3, 8]
// CHECK: tensor.extract_slice %[[W]][0, 0, 0, 0] [4, 1, 3, 8]
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<1x4x3xf32>)
// CHECK: tensor.extract_slice %[[W]][0, 1, 0, 0] [4, 1, 3, 8]
// CHECK: %[[B:.*]] = linalg.generic
// A member's body has no selection by position any more.
// CHECK: %[[LOW:.*]] = linalg.generic
// CHECK-NOT: arith.select
// CHECK: arith.negf
// CHECK: %[[HIGH:.*]] = linalg.generic
// CHECK-NOT: arith.negf
// CHECK: tensor.extract_slice %[[LOW]][0, 0, 0] [1, 2, 3]
// CHECK: tensor.extract_slice %[[HIGH]][0, 0, 0] [1, 2, 3]
// CHECK: %[[Q:.*]] = tensor.collapse_shape {{.*}} into tensor<2x6xf32>
// CHECK: tensor.extract_slice %[[LOW]][0, 2, 0] [1, 1, 3]
// CHECK: %[[K:.*]] = tm_tensor.scatter
// CHECK: %[[V:.*]] = tm_tensor.scatter
// CHECK: return %[[Q]], %[[K]], %[[V]]

// TILES-LABEL: func.func private @matmul_1
// TILES: scf.forall (%[[H:.*]], %[[I:.*]]) in (4, 3) shared_outs(%[[OQ:.*]] = %{{.*}}, %[[OK:.*]] = %arg5, %[[OV:.*]] = %arg6)
// TILES: tensor.extract %arg4
// TILES: arith.cmpi sge
// TILES: scf.forall.in_parallel
// TILES: tensor.parallel_insert_slice {{.*}} into %[[OQ]][%{{.*}}, %[[I]]] [1, %{{.*}}]
// TILES: tensor.parallel_insert_slice {{.*}} into %[[OQ]]
// TILES: tensor.parallel_insert_slice {{.*}} into %[[OK]]
// TILES: tensor.parallel_insert_slice {{.*}} into %[[OK]]
// TILES: tensor.parallel_insert_slice {{.*}} into %[[OV]]
// TILES: tensor.parallel_insert_slice {{.*}} into %[[OV]]

#m_k = affine_map<(m, n, k) -> (m, k)>
#n_k = affine_map<(m, n, k) -> (n, k)>
#m_n = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(d0, d1) -> (d0, d1)>
#d = affine_map<(d0, d1) -> (d1)>
func.func @main(%x: tensor<1x8xf32>, %w: tensor<24x8xf32>, %cos: tensor<6xf32>, %sin: tensor<6xf32>, %at: tensor<1x1xi64>,
    %pk: tensor<10x6xf32>, %pv: tensor<10x6xf32>)
    -> (tensor<2x6xf32>, tensor<2x6xf32>, tensor<10x6xf32>, tensor<10x6xf32>, tensor<1x24xf32>) {
  %p = call @matmul_0(%x, %w) : (tensor<1x8xf32>, tensor<24x8xf32>) -> tensor<1x24xf32>
  %a:3 = call @bundle_0(%cos, %sin, %p, %at, %pk, %pv) : (tensor<6xf32>, tensor<6xf32>, tensor<1x24xf32>, tensor<1x1xi64>,
      tensor<10x6xf32>, tensor<10x6xf32>) -> (tensor<2x6xf32>, tensor<10x6xf32>, tensor<10x6xf32>)
  %r = call @matmul_0(%x, %w) : (tensor<1x8xf32>, tensor<24x8xf32>) -> tensor<1x24xf32>
  %b:3 = call @bundle_0(%cos, %sin, %r, %at, %a#1, %a#2) : (tensor<6xf32>, tensor<6xf32>, tensor<1x24xf32>, tensor<1x1xi64>,
      tensor<10x6xf32>, tensor<10x6xf32>) -> (tensor<2x6xf32>, tensor<10x6xf32>, tensor<10x6xf32>)
  return %a#0, %b#0, %b#1, %b#2, %r : tensor<2x6xf32>, tensor<2x6xf32>, tensor<10x6xf32>, tensor<10x6xf32>, tensor<1x24xf32>
}
func.func private @matmul_0(%x: tensor<1x8xf32>, %w: tensor<24x8xf32>) -> tensor<1x24xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["qkv"]} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x24xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x24xf32>) -> tensor<1x24xf32>
  %p = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x8xf32>, tensor<24x8xf32>) outs(%f : tensor<1x24xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %t = arith.mulf %a, %b : f32
    %u = arith.addf %s, %t : f32
    linalg.yield %u : f32
  } -> tensor<1x24xf32>
  return %p : tensor<1x24xf32>
}
func.func private @bundle_0(%cos: tensor<6xf32>, %sin: tensor<6xf32>, %p: tensor<1x24xf32>, %at: tensor<1x1xi64>,
    %pk: tensor<10x6xf32>, %pv: tensor<10x6xf32>) -> (tensor<2x6xf32>, tensor<10x6xf32>, tensor<10x6xf32>)
    attributes {mlirc.kernel, mlirc.kind = "bundle", mlirc.origin = ["rotation"]} {
  %c0 = arith.constant 0 : index
  %c3 = arith.constant 3 : index
  %c6 = arith.constant 6 : index
  %c12 = arith.constant 12 : index
  %c18 = arith.constant 18 : index
  %e = tensor.empty() : tensor<2x6xf32>
  %q = linalg.generic {indexing_maps = [#d, #d, #id], iterator_types = ["parallel", "parallel"]}
      ins(%cos, %sin : tensor<6xf32>, tensor<6xf32>) outs(%e : tensor<2x6xf32>) {
  ^bb0(%c: f32, %s: f32, %o: f32):
    %h = linalg.index 0 : index
    %d = linalg.index 1 : index
    %first = arith.muli %h, %c6 : index
    %own = arith.addi %first, %d : index
    %x = tensor.extract %p[%c0, %own] : tensor<1x24xf32>
    %low = arith.cmpi slt, %d, %c3 : index
    %up = arith.addi %own, %c3 : index
    %down = arith.subi %own, %c3 : index
    %other = arith.select %low, %up, %down : index
    %y = tensor.extract %p[%c0, %other] : tensor<1x24xf32>
    %n = arith.negf %y : f32
    %z = arith.select %low, %n, %y : f32
    %xc = arith.mulf %x, %c : f32
    %zs = arith.mulf %z, %s : f32
    %r = arith.addf %xc, %zs : f32
    linalg.yield %r : f32
  } -> tensor<2x6xf32>
  %ek = tensor.empty() : tensor<1x6xf32>
  %k = linalg.generic {indexing_maps = [#d, #d, #id], iterator_types = ["parallel", "parallel"]}
      ins(%cos, %sin : tensor<6xf32>, tensor<6xf32>) outs(%ek : tensor<1x6xf32>) {
  ^bb0(%c: f32, %s: f32, %o: f32):
    %d = linalg.index 1 : index
    %own = arith.addi %d, %c12 : index
    %x = tensor.extract %p[%c0, %own] : tensor<1x24xf32>
    %low = arith.cmpi slt, %d, %c3 : index
    %up = arith.addi %own, %c3 : index
    %down = arith.subi %own, %c3 : index
    %other = arith.select %low, %up, %down : index
    %y = tensor.extract %p[%c0, %other] : tensor<1x24xf32>
    %n = arith.negf %y : f32
    %z = arith.select %low, %n, %y : f32
    %xc = arith.mulf %x, %c : f32
    %zs = arith.mulf %z, %s : f32
    %r = arith.addf %xc, %zs : f32
    linalg.yield %r : f32
  } -> tensor<1x6xf32>
  %nk = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(true) ins(%k, %at : tensor<1x6xf32>, tensor<1x1xi64>)
      outs(%pk : tensor<10x6xf32>) {
  ^bb0(%a: f32, %b: f32):
    tm_tensor.yield %a : f32
  } -> tensor<10x6xf32>
  %v = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel"]} outs(%ek : tensor<1x6xf32>) {
  ^bb0(%o: f32):
    %d = linalg.index 1 : index
    %own = arith.addi %d, %c18 : index
    %x = tensor.extract %p[%c0, %own] : tensor<1x24xf32>
    linalg.yield %x : f32
  } -> tensor<1x6xf32>
  %nv = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(true) ins(%v, %at : tensor<1x6xf32>, tensor<1x1xi64>)
      outs(%pv : tensor<10x6xf32>) {
  ^bb0(%a: f32, %b: f32):
    tm_tensor.yield %a : f32
  } -> tensor<10x6xf32>
  return %q, %nk, %nv : tensor<2x6xf32>, tensor<10x6xf32>, tensor<10x6xf32>
}
