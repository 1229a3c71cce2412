// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Rounds that differ in a constant, shifted by two bits, and read what the round before them made are a loop, which ends
// where its flag is true; rounds that carry no flag end with their number. Three rounds stay as they are.

// CHECK-LABEL: func.func @search
// CHECK: scf.forall
// CHECK: %[[F:.*]]:2 = scf.for %[[I:.*]] = %{{.*}} to %{{.*}} step %{{.*}} iter_args(%[[FOUND:.*]] = %{{.*}}, %[[DONE:.*]] = %{{.*}}) -> (tensor<1xi32>, tensor<1xi1>)
// CHECK: %[[TWO:.*]] = arith.constant 2 : index
// CHECK: %[[BITS:.*]] = arith.muli %[[I]], %[[TWO]]
// CHECK: arith.shrui %{{.*}}, %{{.*}} : i32
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %[[FOUND]] : tensor<1x8xi32>, tensor<1xi32>)
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]
// CHECK: scf.yield
// CHECK-NEXT: } {mlirc.until = 1 : i32}
// CHECK-NOT: linalg.generic
// CHECK: tensor.parallel_insert_slice %[[F]]#0

// CHECK-LABEL: func.func @no_flag
// CHECK: scf.for {{.*}} -> (tensor<1xi32>) {
// CHECK: scf.yield
// CHECK-NEXT: }
// CHECK-NOT: mlirc.until

// CHECK-LABEL: func.func @three
// CHECK-NOT: scf.for %
// CHECK: return

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#one = affine_map<(d0) -> (d0)>
module attributes {transform.with_named_sequence} {
  func.func @search(%x: tensor<1x8xi32>, %w: tensor<1xi32>) -> tensor<1xi32> {
    %zero = arith.constant 0 : i32
    %no = arith.constant false
    %c0 = arith.constant 256 : i32
    %c1 = arith.constant 64 : i32
    %c2 = arith.constant 16 : i32
    %c3 = arith.constant 4 : i32
    %out = tensor.empty() : tensor<1xi32>
    %r = scf.forall (%i) in (1) shared_outs(%o = %out) -> (tensor<1xi32>) {
      %xs = tensor.extract_slice %x[0, 0] [1, 8] [1, 1] : tensor<1x8xi32> to tensor<1x8xi32>
      %ws = tensor.extract_slice %w[0] [1] [1] : tensor<1xi32> to tensor<1xi32>
      %e = tensor.empty() : tensor<1xi32>
      %b = tensor.empty() : tensor<1xi1>
      %e2 = tensor.empty() : tensor<1x8xi32>
      %f = linalg.fill ins(%zero : i32) outs(%e : tensor<1xi32>) -> tensor<1xi32>
      %d = linalg.fill ins(%no : i1) outs(%b : tensor<1xi1>) -> tensor<1xi1>
      %m0 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c0 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s0 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m0 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f0 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%d, %f, %s0, %ws : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%n: i1, %s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c0 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        %y = arith.select %n, %s, %v : i32
        linalg.yield %y : i32
      } -> tensor<1xi32>
      %d0 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%d, %s0, %ws : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
      ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
        %g = arith.cmpi eq, %a, %k : i32
        %y = arith.ori %n, %g : i1
        linalg.yield %y : i1
      } -> tensor<1xi1>
      %m1 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f0 : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c1 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s1 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m1 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f1 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%d0, %f0, %s1, %ws : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%n: i1, %s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c1 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        %y = arith.select %n, %s, %v : i32
        linalg.yield %y : i32
      } -> tensor<1xi32>
      %d1 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%d0, %s1, %ws : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
      ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
        %g = arith.cmpi eq, %a, %k : i32
        %y = arith.ori %n, %g : i1
        linalg.yield %y : i1
      } -> tensor<1xi1>
      %m2 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f1 : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c2 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s2 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m2 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f2 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%d1, %f1, %s2, %ws : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%n: i1, %s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c2 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        %y = arith.select %n, %s, %v : i32
        linalg.yield %y : i32
      } -> tensor<1xi32>
      %d2 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%d1, %s2, %ws : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
      ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
        %g = arith.cmpi eq, %a, %k : i32
        %y = arith.ori %n, %g : i1
        linalg.yield %y : i1
      } -> tensor<1xi1>
      %m3 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f2 : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c3 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s3 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m3 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f3 = linalg.generic {indexing_maps = [#one, #one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%d2, %f2, %s3, %ws : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%n: i1, %s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c3 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        %y = arith.select %n, %s, %v : i32
        linalg.yield %y : i32
      } -> tensor<1xi32>
      %d3 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%d2, %s3, %ws : tensor<1xi1>, tensor<1xi32>, tensor<1xi32>) outs(%b : tensor<1xi1>) {
      ^bb0(%n: i1, %a: i32, %k: i32, %u: i1):
        %g = arith.cmpi eq, %a, %k : i32
        %y = arith.ori %n, %g : i1
        linalg.yield %y : i1
      } -> tensor<1xi1>
      scf.forall.in_parallel {
        tensor.parallel_insert_slice %f3 into %o[0] [1] [1] : tensor<1xi32> into tensor<1xi32>
      }
    } {mapping = [#gpu.block<x>]}
    return %r : tensor<1xi32>
  }
  func.func @no_flag(%x: tensor<1x8xi32>, %w: tensor<1xi32>) -> tensor<1xi32> {
    %zero = arith.constant 0 : i32
    %no = arith.constant false
    %c0 = arith.constant 256 : i32
    %c1 = arith.constant 64 : i32
    %c2 = arith.constant 16 : i32
    %c3 = arith.constant 4 : i32
    %out = tensor.empty() : tensor<1xi32>
    %r = scf.forall (%i) in (1) shared_outs(%o = %out) -> (tensor<1xi32>) {
      %xs = tensor.extract_slice %x[0, 0] [1, 8] [1, 1] : tensor<1x8xi32> to tensor<1x8xi32>
      %ws = tensor.extract_slice %w[0] [1] [1] : tensor<1xi32> to tensor<1xi32>
      %e = tensor.empty() : tensor<1xi32>
      %b = tensor.empty() : tensor<1xi1>
      %e2 = tensor.empty() : tensor<1x8xi32>
      %f = linalg.fill ins(%zero : i32) outs(%e : tensor<1xi32>) -> tensor<1xi32>
      %d = linalg.fill ins(%no : i1) outs(%b : tensor<1xi1>) -> tensor<1xi1>
      %m0 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c0 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s0 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m0 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f0 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%f, %s0, %ws : tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c0 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        linalg.yield %v : i32
      } -> tensor<1xi32>
      %m1 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f0 : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c1 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s1 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m1 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f1 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%f0, %s1, %ws : tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c1 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        linalg.yield %v : i32
      } -> tensor<1xi32>
      %m2 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f1 : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c2 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s2 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m2 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f2 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%f1, %s2, %ws : tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c2 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        linalg.yield %v : i32
      } -> tensor<1xi32>
      %m3 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f2 : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c3 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s3 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m3 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f3 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%f2, %s3, %ws : tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c3 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        linalg.yield %v : i32
      } -> tensor<1xi32>
      scf.forall.in_parallel {
        tensor.parallel_insert_slice %f3 into %o[0] [1] [1] : tensor<1xi32> into tensor<1xi32>
      }
    } {mapping = [#gpu.block<x>]}
    return %r : tensor<1xi32>
  }
  func.func @three(%x: tensor<1x8xi32>, %w: tensor<1xi32>) -> tensor<1xi32> {
    %zero = arith.constant 0 : i32
    %no = arith.constant false
    %c0 = arith.constant 256 : i32
    %c1 = arith.constant 64 : i32
    %c2 = arith.constant 16 : i32
    %out = tensor.empty() : tensor<1xi32>
    %r = scf.forall (%i) in (1) shared_outs(%o = %out) -> (tensor<1xi32>) {
      %xs = tensor.extract_slice %x[0, 0] [1, 8] [1, 1] : tensor<1x8xi32> to tensor<1x8xi32>
      %ws = tensor.extract_slice %w[0] [1] [1] : tensor<1xi32> to tensor<1xi32>
      %e = tensor.empty() : tensor<1xi32>
      %b = tensor.empty() : tensor<1xi1>
      %e2 = tensor.empty() : tensor<1x8xi32>
      %f = linalg.fill ins(%zero : i32) outs(%e : tensor<1xi32>) -> tensor<1xi32>
      %d = linalg.fill ins(%no : i1) outs(%b : tensor<1xi1>) -> tensor<1xi1>
      %m0 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c0 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s0 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m0 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f0 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%f, %s0, %ws : tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c0 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        linalg.yield %v : i32
      } -> tensor<1xi32>
      %m1 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f0 : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c1 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s1 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m1 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f1 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%f0, %s1, %ws : tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c1 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        linalg.yield %v : i32
      } -> tensor<1xi32>
      %m2 = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
          ins(%xs, %f1 : tensor<1x8xi32>, tensor<1xi32>) outs(%e2 : tensor<1x8xi32>) {
      ^bb0(%a: i32, %s: i32, %u: i32):
        %t = arith.addi %s, %c2 : i32
        %g = arith.cmpi sge, %a, %t : i32
        %v = arith.extui %g : i1 to i32
        linalg.yield %v : i32
      } -> tensor<1x8xi32>
      %s2 = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%m2 : tensor<1x8xi32>) outs(%f : tensor<1xi32>) {
      ^bb0(%a: i32, %s: i32):
        %t = arith.addi %s, %a : i32
        linalg.yield %t : i32
      } -> tensor<1xi32>
      %f2 = linalg.generic {indexing_maps = [#one, #one, #one, #one], iterator_types = ["parallel"]}
          ins(%f1, %s2, %ws : tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) outs(%e : tensor<1xi32>) {
      ^bb0(%s: i32, %a: i32, %k: i32, %u: i32):
        %t = arith.addi %s, %c2 : i32
        %g = arith.cmpi sge, %a, %k : i32
        %v = arith.select %g, %t, %s : i32
        linalg.yield %v : i32
      } -> tensor<1xi32>
      scf.forall.in_parallel {
        tensor.parallel_insert_slice %f2 into %o[0] [1] [1] : tensor<1xi32> into tensor<1xi32>
      }
    } {mapping = [#gpu.block<x>]}
    return %r : tensor<1xi32>
  }
  transform.named_sequence @__transform_main(%m: !transform.any_op {transform.readonly}) {
    %forall = transform.structured.match ops{["scf.forall"]} in %m : (!transform.any_op) -> !transform.any_op
    "schedule.roll"(%forall) : (!transform.any_op) -> ()
    transform.yield
  }
}
