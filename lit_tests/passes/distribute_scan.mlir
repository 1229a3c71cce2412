// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// Two warps scan steps of 256: four neighbours in each thread, lanes by shuffles, the warp in front through shared memory,
// and the carry of the steps before. Each step is stored in the loop; nothing is left to do behind it.
// CHECK-LABEL: gpu.func @rows
// CHECK: scf.for {{.*}} iter_args(%[[CARRY:.*]] = %{{.*}}) -> (f32)
// CHECK: %[[V:.*]] = vector.load %arg0{{.*}} vector<4xf32>
// CHECK: gpu.shuffle up %{{.*}}, %c1_i32
// CHECK: gpu.shuffle up %{{.*}}, %c16_i32
// CHECK: gpu.shuffle idx
// CHECK: gpu.barrier
// CHECK: memref.store
// CHECK: gpu.barrier
// CHECK: arith.addf %[[CARRY]], %
// CHECK: vector.store %{{.*}}, %arg1{{.*}} vector<4xf32>
// CHECK: scf.yield %{{.*}} : f32
// CHECK-NOT: vector.store
// CHECK: gpu.return
#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
func.func @rows(%x: tensor<3x1024xf32>) -> tensor<3x1024xf32> attributes {mlirc.kernel, mlirc.warps = 2 : i32} {
  %zero = arith.constant 0.0 : f32
  %out = tensor.empty() : tensor<3x1024xf32>
  %r = scf.forall (%i) in (3) shared_outs(%o = %out) -> (tensor<3x1024xf32>) {
    %c = tensor.empty() : tensor<1xf32>
    %start = linalg.fill ins(%zero : f32) outs(%c : tensor<1xf32>) -> tensor<1xf32>
    %window = tensor.extract_slice %o[%i, 0] [1, 1024] [1, 1] : tensor<3x1024xf32> to tensor<1x1024xf32>
    %c0 = arith.constant 0 : index
    %n = arith.constant 1024 : index
    %step = arith.constant 256 : index
    %l:2 = scf.for %k = %c0 to %n step %step iter_args(%carry = %start, %w = %window)
        -> (tensor<1xf32>, tensor<1x1024xf32>) {
      %t = tensor.extract_slice %x[%i, %k] [1, 256] [1, 1] : tensor<3x1024xf32> to tensor<1x256xf32>
      %e = tensor.empty() : tensor<1x256xf32>
      %s:2 = linalg.generic {indexing_maps = [#id, #id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%t : tensor<1x256xf32>) outs(%e, %carry : tensor<1x256xf32>, tensor<1xf32>) attrs = {mlirc.scan} {
      ^bb0(%in: f32, %u: f32, %left: f32):
        %y = arith.addf %left, %in : f32
        linalg.yield %y, %y : f32, f32
      } -> (tensor<1x256xf32>, tensor<1xf32>)
      %new = tensor.insert_slice %s#0 into %w[0, %k] [1, 256] [1, 1] : tensor<1x256xf32> into tensor<1x1024xf32>
      scf.yield %s#1, %new : tensor<1xf32>, tensor<1x1024xf32>
    }
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %l#1 into %o[%i, 0] [1, 1024] [1, 1] : tensor<1x1024xf32> into tensor<3x1024xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<3x1024xf32>
}
