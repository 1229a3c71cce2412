// RUN: %mlirc-opt %s --target sm_90a --script 'matmul:mma=wgmma,block_m=128,block_n=64,blocks=4,cluster_size=2,stages=3' | %filecheck %s
// RUN: %mlirc-opt %s --target sm_90a --script 'matmul:mma=wgmma,block_m=128,block_n=64,blocks=4,cluster_size=2,stages=3' --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU
// RUN: not %mlirc-opt %s --target sm_90a --script 'matmul:mma=wgmma,block_m=128,block_n=64,cluster_size=8' --pass mlirc-async --pass mlirc-distribute 2>&1 | %filecheck %s --check-prefix=CLUSTER

// CLUSTER: mlirc.cluster = 8: it must divide the 4 blocks that follow each other

// What the verbs say: stage, pipeline, specialize, cluster, persist, store_through_shared.
// CHECK-LABEL: func.func private @matmul_0
// CHECK-SAME: mlirc.warps = 8 : i32
// CHECK: scf.forall
// CHECK: scf.for
// CHECK: linalg.generic
// CHECK-SAME: mlirc.copy = "tma"
// CHECK: } {mlirc.producers = 4 : i32, mlirc.stages = 3 : i32}
// CHECK: } {mapping = {{.*}}, mlirc.cluster = 2 : i32, mlirc.persist = 4 : i32, mlirc.store = "tma"}

// The two blocks of a cluster share columns: each copies half of the right operand's slice to both, and readers of both
// tell both.
// GPU: nvvm.mbarrier.init %{{.*}}, %c16_i32
// GPU: nvvm.cluster.arrive
// GPU: nvvm.cluster.wait
// GPU: nvvm.mapa
// GPU: nvvm.cp.async.bulk.tensor.shared.cluster.global {{.*}} multicast_mask = %c3_i16
// GPU: "mlirc.tensor_map"({{.*}}) {box = array<i64: 128, 64>, swizzle = 128 : i64}
// GPU: "mlirc.tensor_map"({{.*}}) {box = array<i64: 32, 64>, swizzle = 128 : i64}
// GPU: gpu.launch_func {{.*}} clusters in (%c2, %c1, %c1) blocks in (%c4

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
    %xy = arith.mulf %xe, %ye : f32
    %t = arith.addf %s, %xy : f32
    linalg.yield %t : f32
  } -> tensor<512x192xf32>
  %d = tensor.empty() : tensor<512x192xbf16>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
      iterator_types = ["parallel", "parallel"]} ins(%p : tensor<512x192xf32>) outs(%d : tensor<512x192xbf16>) {
  ^bb0(%x: f32, %y: bf16):
    %t = arith.truncf %x : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<512x192xbf16>
  return %r : tensor<512x192xbf16>
}
