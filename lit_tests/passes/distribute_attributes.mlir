// RUN: not %mlirc-opt %s --pass mlirc-distribute 2>&1 | %filecheck %s
// RUN: sed -e 's/mlirc.warp = 4/mlirc.min_blocks = 3/' %s > %t.blocks.mlir
// RUN: %mlirc-opt %t.blocks.mlir --pass mlirc-distribute | %filecheck %s --check-prefix=BLOCKS
// RUN: sed -e 's/mlirc.warp = 4/mlirc.demands = ["min_blocks"], mlirc.min_blocks = 17/' %s > %t.many.mlir
// RUN: not %mlirc-opt %t.many.mlir --pass mlirc-distribute 2>&1 | %filecheck %s --check-prefix=MANY
// RUN: sed -e 's/mlirc.warp = 4/mlirc.demands = ["group_rows"], mlirc.warps = 4/' %s > %t.group.mlir
// RUN: not %mlirc-opt %t.group.mlir --pass mlirc-distribute 2>&1 | %filecheck %s --check-prefix=GROUP

// An attribute that nothing knows is refused, `min_blocks` goes to the kernel when a multiprocessor can hold them, and
// what the schedule demands has to be honoured.

// CHECK: error: {{.*}}kernel k: func.func: no attribute 'warp': did you mean warps?
// BLOCKS: gpu.func @k({{.*}}mlirc.min_blocks = 3 : i32
// MANY: error: {{.*}}kernel k: mlirc.min_blocks = 17: 17 blocks of 128 threads, a multiprocessor of sm_90a holds 2048
// GROUP: error: {{.*}}kernel k: scf.forall: mlirc.group_rows = 5: the second-last loop has 2 steps
func.func @k(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {mlirc.kernel, mlirc.warp = 4 : i32} {
  %e = tensor.empty() : tensor<8x8xf32>
  %r = scf.forall (%i, %j) = (0, 0) to (8, 8) step (4, 4) shared_outs(%o = %e) -> (tensor<8x8xf32>) {
    %t = tensor.extract_slice %x[%i, %j] [4, 4] [1, 1] : tensor<8x8xf32> to tensor<4x4xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %t into %o[%i, %j] [4, 4] [1, 1] : tensor<4x4xf32> into tensor<8x8xf32>
    }
  } {mapping = [#gpu.block<y>, #gpu.block<x>], mlirc.group_rows = 5 : i32}
  return %r : tensor<8x8xf32>
}
