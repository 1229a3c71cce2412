// RUN: %mlirc-opt %s --script 'scan:chain=true,warps=2,step=256' --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// A block for each step: its number is drawn, its total posted with a flag in one word, and those of the blocks before
// are waited for. The last block that has looked clears the words.
// CHECK-DAG: llvm.mlir.global internal @scan_0_totals_0({{.*}}) {addr_space = 1 : i32} : !llvm.array<120 x i64>
// CHECK-DAG: llvm.mlir.global internal @scan_0_groups_0({{.*}}) {addr_space = 1 : i32} : !llvm.array<6 x i64>
// CHECK: gpu.func @scan_0
// CHECK: llvm.atomicrmw uinc_wrap %{{.*}} syncscope("device") monotonic
// CHECK: gpu.barrier
// CHECK: llvm.store %{{.*}} atomic syncscope("device") monotonic
// CHECK: scf.while
// CHECK: llvm.load %{{.*}} atomic syncscope("device") monotonic
// CHECK: gpu.shuffle up
// CHECK: scf.while
// CHECK: llvm.atomicrmw uinc_wrap %{{.*}} syncscope("device") acq_rel
// CHECK: gpu.launch_func @scan_0_gpu::@scan_0 blocks in (%c120

#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
func.func private @scan_0(%x: tensor<3x10001xf32>) -> tensor<3x10001xf32>
    attributes {mlirc.kernel, mlirc.kind = "scan"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x10001xf32>
  %c = tensor.empty() : tensor<3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%c : tensor<3xf32>) -> tensor<3xf32>
  %r:2 = linalg.generic {indexing_maps = [#id, #id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<3x10001xf32>) outs(%e, %f : tensor<3x10001xf32>, tensor<3xf32>) attrs = {mlirc.scan} {
  ^bb0(%in: f32, %out: f32, %carry: f32):
    %0 = arith.addf %carry, %in : f32
    linalg.yield %0, %0 : f32, f32
  } -> (tensor<3x10001xf32>, tensor<3xf32>)
  return %r#0 : tensor<3x10001xf32>
}
