// A row that two blocks of a cluster share: each has a part of it in its registers, and reads the other's partial sums
// from its shared memory. There is one meeting for each reduction, and one at the end, so that nobody leaves before.
// RUN: %mlirc-opt %s --script reduction:blocks=2,warps=4,vector=1 --pass mlirc-distribute | %filecheck %s
// RUN: not %mlirc-opt %s --script reduction:blocks=3 2>&1 | %filecheck %s --check-prefix=THREE
// RUN: %mlirc-opt %s --script reduction:blocks=2 | %filecheck %s --check-prefix=TILES
// TILES: scf.forall
// TILES: mlirc.spread = 2
// THREE: spread = 3
// CHECK-LABEL: gpu.func @softmax
// CHECK: nvvm.read.ptx.sreg.cluster.ctarank
// CHECK: arith.maximumf
// CHECK: nvvm.cluster.arrive
// CHECK: nvvm.cluster.wait
// CHECK: nvvm.mapa
// CHECK: llvm.load {{.*}} : !llvm.ptr<7> -> f32
// CHECK: arith.addf
// CHECK: nvvm.cluster.arrive
// CHECK: llvm.load {{.*}} : !llvm.ptr<7> -> f32
// CHECK: nvvm.cluster.arrive
// CHECK-NOT: nvvm.cluster.arrive
// CHECK: gpu.launch_func @softmax_gpu::@softmax clusters in (%{{.*}}, {{.*}}) blocks in

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @softmax(%x: tensor<3x1000xf32>) -> tensor<3x1000xf32> attributes {mlirc.kernel, mlirc.kind = "reduction"} {
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3xf32>
  %w = tensor.empty() : tensor<3x1000xf32>
  %f = linalg.fill ins(%low : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  %m = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<3x1000xf32>) outs(%f : tensor<3xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.maximumf %a, %o : f32
    linalg.yield %r : f32
  } -> tensor<3xf32>
  %p = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %m : tensor<3x1000xf32>, tensor<3xf32>) outs(%w : tensor<3x1000xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %d = arith.subf %a, %b : f32
    %r = math.exp %d : f32
    linalg.yield %r : f32
  } -> tensor<3x1000xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%p : tensor<3x1000xf32>) outs(%z : tensor<3xf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.addf %a, %o : f32
    linalg.yield %r : f32
  } -> tensor<3xf32>
  %y = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%p, %s : tensor<3x1000xf32>, tensor<3xf32>) outs(%w : tensor<3x1000xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %r = arith.divf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<3x1000xf32>
  return %y : tensor<3x1000xf32>
}
