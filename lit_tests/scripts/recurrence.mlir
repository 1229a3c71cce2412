// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script 'recurrence:units=3,warps=2' --pass mlirc-recurrence | %filecheck %s --check-prefix=GPU
// RUN: not %mlirc-opt %s --script 'recurrence:units=1,warps=33' 2>&1 | %filecheck %s --check-prefix=WARPS

// A small state: one block, which waits for no other.
// CHECK-LABEL: func.func private @recurrence_0
// CHECK-SAME: mlirc.lowering = "recurrence"
// CHECK-SAME: mlirc.units = 7 : i32
// CHECK-SAME: mlirc.warps = 4 : i32

// WARPS: a thread would hold 4 words of the matrix

// Blocks of three units: the state in a workspace, twice, and a counter of those that have arrived.
// GPU: llvm.mlir.global internal @recurrence_0_arrived(dense<0> : tensor<1xi32>)
// GPU: gpu.func @recurrence_0(
// GPU-SAME: %[[HANDED:[a-z0-9]+]]: memref<2x2x7xf32>)
// GPU-SAME: known_block_size = array<i32: 64, 1, 1>
// GPU: memref.load %arg1
// GPU: scf.for
// GPU: scf.while
// GPU: llvm.load %{{.*}} atomic syncscope("device") acquire
// GPU: gpu.barrier
// GPU: math.fma
// GPU: gpu.shuffle
// GPU: gpu.barrier
// GPU: math.tanh
// GPU: memref.store %{{.*}}, %[[HANDED]]
// GPU: gpu.barrier
// GPU: llvm.atomicrmw uinc_wrap %{{.*}}, %{{.*}} syncscope("device") acq_rel
// GPU: func.func @recurrence_0
// GPU: gpu.launch_func
// GPU-SAME: blocks in (%c3
// GPU-SAME: mlirc.cooperative

#id = affine_map<(b, u) -> (b, u)>
func.func private @recurrence_0(%h0: tensor<2x7xf32>, %w: tensor<7x7xf32>) -> tensor<2x7xf32>
    attributes {mlirc.kernel, mlirc.kind = "recurrence"} {
  %zero = arith.constant 0.0 : f32
  %first = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant 5 : index
  %r = scf.for %t = %first to %count step %one iter_args(%h = %h0) -> (tensor<2x7xf32>) {
    %e = tensor.empty() : tensor<2x7xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2x7xf32>) -> tensor<2x7xf32>
    %d = linalg.generic {indexing_maps = [affine_map<(b, n, k) -> (b, k)>, affine_map<(b, n, k) -> (n, k)>,
        affine_map<(b, n, k) -> (b, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%h, %w : tensor<2x7xf32>, tensor<7x7xf32>) outs(%f : tensor<2x7xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.mulf %a, %b : f32
      %s = arith.addf %o, %m : f32
      linalg.yield %s : f32
    } -> tensor<2x7xf32>
    %n = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%d : tensor<2x7xf32>) outs(%e : tensor<2x7xf32>) {
    ^bb0(%a: f32, %o: f32):
      %t1 = math.tanh %a : f32
      linalg.yield %t1 : f32
    } -> tensor<2x7xf32>
    scf.yield %n : tensor<2x7xf32>
  }
  return %r : tensor<2x7xf32>
}
