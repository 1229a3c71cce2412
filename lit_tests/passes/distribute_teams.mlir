// RUN: %mlirc-opt %s --pass mlirc-distribute | %filecheck %s
// RUN: sed -e 's/mlirc.teams = 2/mlirc.teams = 2, mlirc.cluster = 2/' -e 's/ in (3)/ in (4)/' %s | not %mlirc-opt - --pass mlirc-distribute 2>&1 | %filecheck %s --check-prefix=CLUSTER

// Two teams of four warps in a block: each sums a row of its own, across its warps through shared memory of its own, and
// meets at a barrier of its own. Of three rows, the second team of the last block has none.
// CHECK-LABEL: gpu.func @sums
// CHECK-SAME: known_block_size = array<i32: 256, 1, 1>
// CHECK: %[[FIRST:.*]] = arith.cmpi slt, %{{.*}}, %c4 : index
// CHECK: scf.if %[[FIRST]] {
// CHECK: memref.store {{.*}} memref<4x1xf32, #gpu.address_space<workgroup>>
// CHECK: nvvm.barrier id = %c1_i32 number_of_threads = %c128_i32
// CHECK: } else {
// CHECK: %[[SOME:.*]] = arith.cmpi slt, %{{.*}}, %c3 : index
// CHECK: scf.if %[[SOME]] {
// CHECK: nvvm.barrier id = %c2_i32 number_of_threads = %c128_i32
// CHECK-LABEL: func.func @sums
// CHECK: gpu.launch_func {{.*}} blocks in (%c2, %c1, %c1) threads in (%c256, %c1, %c1)

// CLUSTER: mlirc.teams = 2: blocks form clusters: leave it out
func.func @sums(%x: tensor<3x500xf32>) -> tensor<3xf32> attributes {mlirc.kernel, mlirc.warps = 4 : i32} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3xf32>
  %r = scf.forall (%i) in (3) shared_outs(%o = %e) -> (tensor<3xf32>) {
    %row = tensor.extract_slice %x[%i, 0] [1, 500] [1, 1] : tensor<3x500xf32> to tensor<1x500xf32>
    %z = tensor.empty() : tensor<1xf32>
    %f = linalg.fill ins(%zero : f32) outs(%z : tensor<1xf32>) -> tensor<1xf32>
    %s = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m)>],
        iterator_types = ["parallel", "reduction"]} ins(%row : tensor<1x500xf32>) outs(%f : tensor<1xf32>) {
    ^bb0(%a: f32, %c: f32):
      %y = arith.addf %a, %c : f32
      linalg.yield %y : f32
    } -> tensor<1xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[%i] [1] [1] : tensor<1xf32> into tensor<3xf32>
    }
  } {mapping = [#gpu.block<x>], mlirc.teams = 2 : i32}
  return %r : tensor<3xf32>
}
