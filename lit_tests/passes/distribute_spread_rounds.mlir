// Rounds of a search in a row that two blocks of a cluster share are a loop that ends where its flag is true (but for
// the first and the last one, which differ). The two sums
// of a round wait for one meeting, and what blocks leave each other lies in two places in turn.
// RUN: %mlirc-opt %s --script reduction:blocks=2,warps=4,vector=1 --pass mlirc-distribute | %filecheck %s
// CHECK-LABEL: gpu.func @search
// CHECK: scf.while
// CHECK: arith.cmpi slt
// CHECK: arith.xori %{{.*}}, %true
// CHECK: scf.condition
// CHECK: arith.remui %{{.*}}, %c2
// CHECK: memref.store
// CHECK-NOT: gpu.barrier
// CHECK: memref.store
// CHECK: gpu.barrier
// CHECK: nvvm.cluster.arrive
// CHECK-NEXT: nvvm.cluster.wait
// CHECK-COUNT-2: llvm.load {{.*}} : !llvm.ptr<7> -> i32
// CHECK-NOT: nvvm.cluster.arrive
// CHECK: scf.yield
// CHECK: gpu.return

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#one = affine_map<(d0) -> (d0)>
func.func @search(%x: tensor<1x1000xi32>, %w: tensor<1xi32>) -> tensor<1xi32> attributes {mlirc.kernel, mlirc.kind = "reduction"} {
  %zero = arith.constant 0 : i32
  %no = arith.constant false
  %c0 = arith.constant 1024 : i32
  %k0 = arith.constant 2048 : i32
  %c1 = arith.constant 256 : i32
  %k1 = arith.constant 512 : i32
  %c2 = arith.constant 64 : i32
  %k2 = arith.constant 128 : i32
  %c3 = arith.constant 16 : i32
  %k3 = arith.constant 32 : i32
  %c4 = arith.constant 4 : i32
  %k4 = arith.constant 8 : i32
  %c5 = arith.constant 1 : i32
  %k5 = arith.constant 2 : i32
  %e = tensor.empty() : tensor<1xi32>
  %b = tensor.empty() : tensor<1xi1>
  %e2 = tensor.empty() : tensor<1x1000xi32>
  %f = linalg.fill ins(%zero : i32) outs(%e : tensor<1xi32>) -> tensor<1xi32>
  %d = linalg.fill ins(%no : i1) outs(%b : tensor<1xi1>) -> tensor<1xi1>
  %mc0 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %c0 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sc0 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mc0 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %mk0 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %k0 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sk0 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mk0 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %d0 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d, %sc0, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
  ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
    %g = arith.cmpi eq, %a, %k : i32
    %y = arith.ori %n, %g : i1
    linalg.yield %y : i1
  } -> tensor<1xi1>
  %f0 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d, %f, %sc0, %sk0, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
  ^bb0(%n: i1, %s: i32, %a: i32, %a2: i32, %k: i32, %u: i32):
    %t = arith.addi %s, %c0 : i32
    %t2 = arith.addi %s, %k0 : i32
    %g = arith.cmpi sge, %a, %k : i32
    %g2 = arith.cmpi sge, %a2, %k : i32
    %v = arith.select %g, %t, %s : i32
    %v2 = arith.select %g2, %t2, %v : i32
    %y = arith.select %n, %s, %v2 : i32
    linalg.yield %y : i32
  } -> tensor<1xi32>
  %mc1 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f0 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %c1 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sc1 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mc1 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %mk1 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f0 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %k1 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sk1 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mk1 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %d1 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d0, %sc1, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
  ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
    %g = arith.cmpi eq, %a, %k : i32
    %y = arith.ori %n, %g : i1
    linalg.yield %y : i1
  } -> tensor<1xi1>
  %f1 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d0, %f0, %sc1, %sk1, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
  ^bb0(%n: i1, %s: i32, %a: i32, %a2: i32, %k: i32, %u: i32):
    %t = arith.addi %s, %c1 : i32
    %t2 = arith.addi %s, %k1 : i32
    %g = arith.cmpi sge, %a, %k : i32
    %g2 = arith.cmpi sge, %a2, %k : i32
    %v = arith.select %g, %t, %s : i32
    %v2 = arith.select %g2, %t2, %v : i32
    %y = arith.select %n, %s, %v2 : i32
    linalg.yield %y : i32
  } -> tensor<1xi32>
  %mc2 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f1 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %c2 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sc2 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mc2 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %mk2 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f1 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %k2 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sk2 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mk2 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %d2 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d1, %sc2, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
  ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
    %g = arith.cmpi eq, %a, %k : i32
    %y = arith.ori %n, %g : i1
    linalg.yield %y : i1
  } -> tensor<1xi1>
  %f2 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d1, %f1, %sc2, %sk2, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
  ^bb0(%n: i1, %s: i32, %a: i32, %a2: i32, %k: i32, %u: i32):
    %t = arith.addi %s, %c2 : i32
    %t2 = arith.addi %s, %k2 : i32
    %g = arith.cmpi sge, %a, %k : i32
    %g2 = arith.cmpi sge, %a2, %k : i32
    %v = arith.select %g, %t, %s : i32
    %v2 = arith.select %g2, %t2, %v : i32
    %y = arith.select %n, %s, %v2 : i32
    linalg.yield %y : i32
  } -> tensor<1xi32>
  %mc3 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f2 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %c3 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sc3 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mc3 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %mk3 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f2 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %k3 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sk3 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mk3 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %d3 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d2, %sc3, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
  ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
    %g = arith.cmpi eq, %a, %k : i32
    %y = arith.ori %n, %g : i1
    linalg.yield %y : i1
  } -> tensor<1xi1>
  %f3 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d2, %f2, %sc3, %sk3, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
  ^bb0(%n: i1, %s: i32, %a: i32, %a2: i32, %k: i32, %u: i32):
    %t = arith.addi %s, %c3 : i32
    %t2 = arith.addi %s, %k3 : i32
    %g = arith.cmpi sge, %a, %k : i32
    %g2 = arith.cmpi sge, %a2, %k : i32
    %v = arith.select %g, %t, %s : i32
    %v2 = arith.select %g2, %t2, %v : i32
    %y = arith.select %n, %s, %v2 : i32
    linalg.yield %y : i32
  } -> tensor<1xi32>
  %mc4 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f3 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %c4 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sc4 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mc4 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %mk4 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f3 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %k4 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sk4 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mk4 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %d4 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d3, %sc4, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
  ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
    %g = arith.cmpi eq, %a, %k : i32
    %y = arith.ori %n, %g : i1
    linalg.yield %y : i1
  } -> tensor<1xi1>
  %f4 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d3, %f3, %sc4, %sk4, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
  ^bb0(%n: i1, %s: i32, %a: i32, %a2: i32, %k: i32, %u: i32):
    %t = arith.addi %s, %c4 : i32
    %t2 = arith.addi %s, %k4 : i32
    %g = arith.cmpi sge, %a, %k : i32
    %g2 = arith.cmpi sge, %a2, %k : i32
    %v = arith.select %g, %t, %s : i32
    %v2 = arith.select %g2, %t2, %v : i32
    %y = arith.select %n, %s, %v2 : i32
    linalg.yield %y : i32
  } -> tensor<1xi32>
  %mc5 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f4 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %c5 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sc5 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mc5 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %mk5 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %f4 : tensor<1x1000xi32>, tensor<1xi32>) outs(%e2 : tensor<1x1000xi32>) {
  ^bb0(%a: i32, %s: i32, %u: i32):
    %t = arith.addi %s, %k5 : i32
    %g = arith.cmpi sge, %a, %t : i32
    %v = arith.extui %g : i1 to i32
    linalg.yield %v : i32
  } -> tensor<1x1000xi32>
  %sk5 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%mk5 : tensor<1x1000xi32>) outs(%f : tensor<1xi32>) {
  ^bb0(%a: i32, %s: i32):
    %t = arith.addi %s, %a : i32
    linalg.yield %t : i32
  } -> tensor<1xi32>
  %d5 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d4, %sc5, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
  ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
    %g = arith.cmpi eq, %a, %k : i32
    %y = arith.ori %n, %g : i1
    linalg.yield %y : i1
  } -> tensor<1xi1>
  %f5 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one, #one], iterator_types = ["parallel"]}
      ins(%d4, %f4, %sc5, %sk5, %w : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
  ^bb0(%n: i1, %s: i32, %a: i32, %a2: i32, %k: i32, %u: i32):
    %t = arith.addi %s, %c5 : i32
    %t2 = arith.addi %s, %k5 : i32
    %g = arith.cmpi sge, %a, %k : i32
    %g2 = arith.cmpi sge, %a2, %k : i32
    %v = arith.select %g, %t, %s : i32
    %v2 = arith.select %g2, %t2, %v : i32
    %y = arith.select %n, %s, %v2 : i32
    linalg.yield %y : i32
  } -> tensor<1xi32>
  return %f5 : tensor<1xi32>
}
