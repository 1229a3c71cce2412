// RUN: %mlirc-opt %s --script matvec:rows=16,warps=2 | %filecheck %s
// RUN: %mlirc-opt %s --script matvec:rows=8 | %filecheck %s --check-prefix=ONE
// RUN: %mlirc-opt %s --script matvec:rows=16,warps=2 --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU
// RUN: not %mlirc-opt %s --script matvec:rows=4 2>&1 | %filecheck %s --check-prefix=FEW

// `schedule.partial_results`: a block of 16 columns reduces its two groups of eight, one of eight columns its group. The squares are no result.

// CHECK-LABEL: func.func private @matmul_0
// CHECK: scf.forall (%[[I:.*]]) in (3) shared_outs(%[[Y:.*]] = %{{.*}}, %[[PARTS:.*]] = %{{.*}}) -> (tensor<48xf32>, tensor<1x6xf32>)
// CHECK: %[[GROUPS:.*]] = tensor.expand_shape %{{.*}} {{.*}} output_shape [2, 8] : tensor<16xf32> into tensor<2x8xf32>
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]} ins(%[[GROUPS]] :
// CHECK: scf.forall.in_parallel
// CHECK-NEXT: tensor.parallel_insert_slice %{{.*}} into %[[Y]]
// CHECK-NEXT: tensor.parallel_insert_slice %[[SUM]] into %[[PARTS]][0, %{{.*}}] [1, 2] [1, 1]
// CHECK-NOT: mlirc.partial

// ONE: scf.forall (%{{.*}}) in (6)
// ONE: linalg.generic {{.*}} iterator_types = ["reduction"]}
// ONE: tensor.parallel_insert_slice {{.*}} into %{{.*}}[0, %{{.*}}] [1, 1] [1, 1]

// GPU-LABEL: gpu.func @matmul_0
// GPU: memref.store {{.*}} : memref<1x6xf32>

// FEW: its blocks have a multiple of 8 rows, whole ones

#id = affine_map<(d0, d1) -> (d0, d1)>
#m_k = affine_map<(m, n, k) -> (m, k)>
#n_k = affine_map<(m, n, k) -> (n, k)>
#m_n = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%x: tensor<1x40xf32>, %w: tensor<48x40xf32>) -> (tensor<1x48xf32>, tensor<1x6xf32>)
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x48xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x48xf32>) -> tensor<1x48xf32>
  %y = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x40xf32>, tensor<48x40xf32>) outs(%f : tensor<1x48xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %t = arith.mulf %a, %b : f32
    %s = arith.addf %c, %t : f32
    linalg.yield %s : f32
  } -> tensor<1x48xf32>
  %squares = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<1x48xf32>) outs(%e : tensor<1x48xf32>) {
  ^bb0(%a: f32, %c: f32):
    %t = arith.mulf %a, %a : f32
    linalg.yield %t : f32
  } -> tensor<1x48xf32>
  %groups = tensor.expand_shape %squares [[0], [1, 2]] output_shape [1, 6, 8] : tensor<1x48xf32> into tensor<1x6x8xf32>
  %e6 = tensor.empty() : tensor<1x6xf32>
  %start = linalg.fill {mlirc.partial} ins(%zero : f32) outs(%e6 : tensor<1x6xf32>) -> tensor<1x6xf32>
  %parts = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel", "reduction"]} ins(%groups : tensor<1x6x8xf32>) outs(%start : tensor<1x6xf32>)
      attrs = {mlirc.partial} {
  ^bb0(%a: f32, %c: f32):
    %t = arith.addf %c, %a : f32
    linalg.yield %t : f32
  } -> tensor<1x6xf32>
  return %y, %parts : tensor<1x48xf32>, tensor<1x6xf32>
}
