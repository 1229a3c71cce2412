// RUN: %mlirc-opt %s --script matvec:rows=2,warps=1 | %filecheck %s
// RUN: %mlirc-opt %s --script matvec:rows=2,warps=1 --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU

// `schedule.place_results`: of three heads of two members of three rows, heads 0 and 2 are a tensor of their own, and head 1 goes to the row of a pool
// that a number names, or nowhere. A block has two rows of a head, or the one that is left, in both members; what it writes where it has none of a result's
// rows is empty.

// CHECK-LABEL: func.func private @matmul_0
// CHECK: scf.forall (%[[H:.*]], %[[I:.*]]) in (3, 2) shared_outs(%[[OWN:.*]] = %{{.*}}, %[[POOL:.*]] = %arg3)
// CHECK: affine.min
// CHECK: %[[N:.*]] = tensor.extract %arg2
// CHECK: %[[NUMBER:.*]] = arith.index_cast %[[N]]
// CHECK: arith.cmpi sge, %[[NUMBER]]
// CHECK: arith.select
// CHECK: tensor.extract_slice %{{.*}}[0] [%{{.*}}] [1] : tensor<?xf32> to tensor<?xf32>
// CHECK: scf.forall.in_parallel
// CHECK-NEXT: tensor.parallel_insert_slice {{.*}} into %[[OWN]][%[[ROW:.*]], %[[AT:.*]]] [1, %[[LEFT:.*]]] [1, 1]
// CHECK-NEXT: tensor.parallel_insert_slice {{.*}} into %[[OWN]][%[[ROW]], %{{.*}}] [1, %[[LEFT]]] [1, 1]
// CHECK-NEXT: tensor.parallel_insert_slice {{.*}} into %[[POOL]][%[[NUMBER]], %[[AT]]] [1, %{{.*}}] [1, 1]
// CHECK-NEXT: tensor.parallel_insert_slice {{.*}} into %[[POOL]][%[[NUMBER]], %{{.*}}] [1, %{{.*}}] [1, 1]
// CHECK-NOT: tm_tensor.scatter

// The pool begins as a copy of the argument, which a launch plan makes in place.
// GPU-LABEL: gpu.func @matmul_0
// GPU: scf.if
// GPU: memref.store {{.*}} : memref<2x6xf32>
// GPU: scf.if
// GPU: memref.store {{.*}} : memref<10x6xf32>
// GPU-LABEL: func.func @matmul_0
// GPU: memref.copy %arg3, %arg6
// GPU: gpu.launch_func

#m_k = affine_map<(m, h, i, k) -> (m, k)>
#h_i_k = affine_map<(m, h, i, k) -> (h, i, k)>
#m_h_i = affine_map<(m, h, i, k) -> (m, h, i)>
#m_h_i_of = affine_map<(m, h, i) -> (m, h, i)>
#i = affine_map<(m, h, i) -> (i)>
func.func private @matmul_0(%x: tensor<1x8xf32>, %w: tensor<18x8xf32>, %at: tensor<1x1xi64>, %pool: tensor<10x6xf32>,
    %scale: tensor<3xf32>) -> (tensor<2x6xf32>, tensor<10x6xf32>) attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x3x3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x3x3xf32>) -> tensor<1x3x3xf32>
  %v = tensor.expand_shape %w [[0, 1, 2], [3]] output_shape [3, 2, 3, 8] : tensor<18x8xf32> into tensor<3x2x3x8xf32>
  %v0 = tensor.extract_slice %v[0, 0, 0, 0] [3, 1, 3, 8] [1, 1, 1, 1] : tensor<3x2x3x8xf32> to tensor<3x3x8xf32>
  %v1 = tensor.extract_slice %v[0, 1, 0, 0] [3, 1, 3, 8] [1, 1, 1, 1] : tensor<3x2x3x8xf32> to tensor<3x3x8xf32>
  %p0 = linalg.generic {indexing_maps = [#m_k, #h_i_k, #m_h_i],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %v0 : tensor<1x8xf32>, tensor<3x3x8xf32>) outs(%f : tensor<1x3x3xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %t = arith.mulf %a, %b : f32
    %u = arith.addf %s, %t : f32
    linalg.yield %u : f32
  } -> tensor<1x3x3xf32>
  %p1 = linalg.generic {indexing_maps = [#m_k, #h_i_k, #m_h_i],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %v1 : tensor<1x8xf32>, tensor<3x3x8xf32>) outs(%f : tensor<1x3x3xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %t = arith.mulf %a, %b : f32
    %u = arith.addf %s, %t : f32
    linalg.yield %u : f32
  } -> tensor<1x3x3xf32>
  %r0 = linalg.generic {indexing_maps = [#m_h_i_of, #m_h_i_of, #i, #m_h_i_of],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%p0, %p1, %scale : tensor<1x3x3xf32>, tensor<1x3x3xf32>, tensor<3xf32>) outs(%e : tensor<1x3x3xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32, %o: f32):
    %t = arith.mulf %b, %c : f32
    %u = arith.subf %a, %t : f32
    linalg.yield %u : f32
  } -> tensor<1x3x3xf32>
  %r1 = linalg.generic {indexing_maps = [#m_h_i_of, #m_h_i_of, #i, #m_h_i_of],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%p0, %p1, %scale : tensor<1x3x3xf32>, tensor<1x3x3xf32>, tensor<3xf32>) outs(%e : tensor<1x3x3xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32, %o: f32):
    %t = arith.mulf %a, %c : f32
    %u = arith.addf %b, %t : f32
    linalg.yield %u : f32
  } -> tensor<1x3x3xf32>
  %q0 = tensor.extract_slice %r0[0, 0, 0] [1, 2, 3] [1, 2, 1] : tensor<1x3x3xf32> to tensor<2x3xf32>
  %q1 = tensor.extract_slice %r1[0, 0, 0] [1, 2, 3] [1, 2, 1] : tensor<1x3x3xf32> to tensor<2x3xf32>
  %eq = tensor.empty() : tensor<2x2x3xf32>
  %j0 = tensor.insert_slice %q0 into %eq[0, 0, 0] [2, 1, 3] [1, 1, 1] : tensor<2x3xf32> into tensor<2x2x3xf32>
  %j1 = tensor.insert_slice %q1 into %j0[0, 1, 0] [2, 1, 3] [1, 1, 1] : tensor<2x3xf32> into tensor<2x2x3xf32>
  %q = tensor.collapse_shape %j1 [[0], [1, 2]] : tensor<2x2x3xf32> into tensor<2x6xf32>
  %k0 = tensor.extract_slice %r0[0, 1, 0] [1, 1, 3] [1, 1, 1] : tensor<1x3x3xf32> to tensor<1x3xf32>
  %k1 = tensor.extract_slice %r1[0, 1, 0] [1, 1, 3] [1, 1, 1] : tensor<1x3x3xf32> to tensor<1x3xf32>
  %ek = tensor.empty() : tensor<1x2x3xf32>
  %l0 = tensor.insert_slice %k0 into %ek[0, 0, 0] [1, 1, 3] [1, 1, 1] : tensor<1x3xf32> into tensor<1x2x3xf32>
  %l1 = tensor.insert_slice %k1 into %l0[0, 1, 0] [1, 1, 3] [1, 1, 1] : tensor<1x3xf32> into tensor<1x2x3xf32>
  %k = tensor.collapse_shape %l1 [[0], [1, 2]] : tensor<1x2x3xf32> into tensor<1x6xf32>
  %n = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(true) ins(%k, %at : tensor<1x6xf32>, tensor<1x1xi64>)
      outs(%pool : tensor<10x6xf32>) {
  ^bb0(%a: f32, %b: f32):
    tm_tensor.yield %a : f32
  } -> tensor<10x6xf32>
  return %q, %n : tensor<2x6xf32>, tensor<10x6xf32>
}
