// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script auto --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU

// A product of groups, each with the matrix that its number chooses: all groups of some columns follow each other, a
// block reads its number once, and slices that matrix; with a negative number it takes no step.

// CHECK-LABEL: func.func private @matmul_0
// CHECK: scf.forall (%[[N:.*]], %[[G:.*]]) in (5, 5)
// CHECK: %[[NUMBER:.*]] = tensor.extract %arg1[%[[G]]] : tensor<5xi64>
// CHECK: %[[I:.*]] = arith.index_cast %[[NUMBER]]
// CHECK: %[[LOW:.*]] = arith.maxsi %[[I]], %{{.*}} : index
// CHECK: %[[M:.*]] = arith.minsi %[[LOW]], %{{.*}} {mlirc.index_below = 7 : i64}
// CHECK: %[[NONE:.*]] = arith.cmpi slt, %[[I]]
// CHECK: %[[END:.*]] = arith.select %[[NONE]], %[[ZERO:.*]], %
// CHECK: scf.for %[[K:.*]] = %[[ZERO]] to %[[END]] step
// CHECK-NOT: tensor.extract %arg2
// CHECK: tensor.extract_slice %arg2[%[[M]], %{{.*}}, %[[K]]] [1, {{.*}}] [1, 1, 1]

// The slices come by tensor copies of a producer, of the seven matrices as one array.

// GPU: gpu.func @matmul_0
// GPU: nvvm.cp.async.bulk.tensor
// GPU: "mlirc.tensor_map"(%arg2) {{.*}}memref<7x160x272xbf16>

#a = affine_map<(g, m, n, k) -> (g, m, k)>
#b = affine_map<(g, m, n, k) -> (g, n, k)>
#c = affine_map<(g, m, n, k) -> (g, m, n)>
#group = affine_map<(g, n, k) -> (g)>
#id = affine_map<(g, n, k) -> (g, n, k)>

func.func private @matmul_0(%x: tensor<5x16x272xbf16>, %table: tensor<5xi64>, %w: tensor<7x160x272xbf16>) -> tensor<5x16x160xf32> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = []} {
  %zero = arith.constant 0.0 : f32
  %none = arith.constant 0.0 : bf16
  %c0 = arith.constant 0 : i64
  %first = arith.constant 0 : index
  %last = arith.constant 6 : index
  %r = tensor.empty() : tensor<5x16x160xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r : tensor<5x16x160xf32>) -> tensor<5x16x160xf32>
  %e = tensor.empty() : tensor<5x160x272xbf16>
  %chosen = linalg.generic {indexing_maps = [#group, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%table : tensor<5xi64>) outs(%e : tensor<5x160x272xbf16>) attrs = {mlirc.gather_matrices} {
  ^bb0(%in: i64, %out: bf16):
    %misses = arith.cmpi slt, %in, %c0 : i64
    %some = arith.maxsi %in, %c0 : i64
    %i = arith.index_cast %some : i64 to index
    %low = arith.maxsi %i, %first {mlirc.index_below = 7 : i64} : index
    %m = arith.minsi %low, %last {mlirc.index_below = 7 : i64} : index
    %n = linalg.index 1 : index
    %k = linalg.index 2 : index
    %v = tensor.extract %w[%m, %n, %k] : tensor<7x160x272xbf16>
    %y = arith.select %misses, %none, %v : bf16
    linalg.yield %y : bf16
  } -> tensor<5x160x272xbf16>
  %y = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %chosen : tensor<5x16x272xbf16>, tensor<5x160x272xbf16>) outs(%f : tensor<5x16x160xf32>) {
  ^bb0(%p: bf16, %q: bf16, %o: f32):
    %pw = arith.extf %p : bf16 to f32
    %qw = arith.extf %q : bf16 to f32
    %pq = arith.mulf %pw, %qw : f32
    %s = arith.addf %o, %pq : f32
    linalg.yield %s : f32
  } -> tensor<5x16x160xf32>
  return %y : tensor<5x16x160xf32>
}
