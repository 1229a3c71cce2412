// RUN: %mlirc-opt %s --target sm_90a --script 'matmul:mma=wgmma,block_m=128,block_n=64,blocks=5,stream=1,stages=3,combine=last' | %filecheck %s
// RUN: %mlirc-opt %s --target sm_90a --script 'matmul:mma=wgmma,block_m=128,block_n=64,blocks=5,stream=1,stages=3,combine=last' --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU

// Twelve tiles on five blocks: two waves of whole tiles, and two tiles whose steps five blocks share. The second launch is one
// with the first.
// CHECK-LABEL: func.func private @matmul_0
// CHECK: scf.forall (%{{.*}}, %{{.*}}) in (3, 5)
// CHECK: } {mlirc.producers = 4 : i32, mlirc.stages = 3 : i32}
// CHECK: } {mapping = {{.*}}, mlirc.persist = 5 : i32, mlirc.store = "tma"}
// CHECK: scf.forall (%{{.*}}, %{{.*}}) in (2, 1)
// CHECK: mlirc.last_block = 8 : i32

// Both roles count the slots that they have used: those of a segment are fewer than those of a tile. A whole tile leaves by
// tensor copies, a segment's sums by the threads' own stores; then the block draws a number of the tile.
// GPU: llvm.mlir.global internal @matmul_0_0_counters
// GPU-SAME: array<2 x i32>
// GPU: scf.for {{.*}} iter_args(%[[USED:.*]] = %c0) -> (index)
// GPU: vector.store
// GPU: nvvm.cp.async.bulk.tensor.global.shared.cta
// GPU: %[[COUNT:.*]] = {{.*}}llvm.atomicrmw uinc_wrap
// GPU-SAME: syncscope("device") acq_rel
// GPU: scf.for {{.*}} iter_args(%{{.*}} = %c0) -> (index)
// GPU: nvvm.cp.async.bulk.tensor.shared.cluster.global
// GPU: gpu.launch_func {{.*}} blocks in (%c5

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%a: tensor<512x256xbf16>, %b: tensor<192x256xbf16>) -> tensor<512x192xbf16>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<512x192xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<512x192xf32>) -> tensor<512x192xf32>
  %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<512x256xbf16>, tensor<192x256xbf16>) outs(%f : tensor<512x192xf32>) {
  ^bb0(%x: bf16, %y: bf16, %s: f32):
    %xe = arith.extf %x : bf16 to f32
    %ye = arith.extf %y : bf16 to f32
    %m = arith.mulf %xe, %ye : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  } -> tensor<512x192xf32>
  %o = tensor.empty() : tensor<512x192xbf16>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
      iterator_types = ["parallel", "parallel"]} ins(%p : tensor<512x192xf32>) outs(%o : tensor<512x192xbf16>) {
  ^bb0(%x: f32, %y: bf16):
    %t = arith.truncf %x : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<512x192xbf16>
  return %r : tensor<512x192xbf16>
}
