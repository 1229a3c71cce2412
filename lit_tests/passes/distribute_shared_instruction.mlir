// RUN: %mlirc-opt %s --pass mlirc-distribute | %filecheck %s

// Two products of the same rows with eight columns each share an instruction, whose other rows those of one alone would leave empty.

#id = affine_map<(d0, d1) -> (d0, d1)>
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>

// CHECK-LABEL: gpu.func @both
// CHECK-SAME: mma_direct 1x8x64 on 1x1 warps
// CHECK-COUNT-4: nvgpu.mma.sync
// CHECK-NOT: nvgpu.mma.sync
// CHECK: arith.mulf
func.func private @both(%x: tensor<1x64xbf16>, %v: tensor<8x64xbf16>, %w: tensor<8x64xbf16>) -> tensor<1x8xf32> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = [], mlirc.warps = 1 : i32} {
  %zero = arith.constant 0.0 : f32
  %r = tensor.empty() : tensor<1x8xf32>
  %y = scf.forall (%i) in (1) shared_outs(%out = %r) -> (tensor<1x8xf32>) {
    %e = tensor.empty() : tensor<1x8xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x8xf32>) -> tensor<1x8xf32>
    %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %v : tensor<1x64xbf16>, tensor<8x64xbf16>) outs(%f : tensor<1x8xf32>) attrs = {mlirc.mma = "mma_direct"} {
    ^bb0(%s: bf16, %t: bf16, %sum: f32):
      %0 = arith.extf %s : bf16 to f32
      %1 = arith.extf %t : bf16 to f32
      %2 = arith.mulf %0, %1 : f32
      %3 = arith.addf %sum, %2 : f32
      linalg.yield %3 : f32
    } -> tensor<1x8xf32>
    %q = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %w : tensor<1x64xbf16>, tensor<8x64xbf16>) outs(%f : tensor<1x8xf32>) attrs = {mlirc.mma = "mma_direct"} {
    ^bb0(%s: bf16, %t: bf16, %sum: f32):
      %0 = arith.extf %s : bf16 to f32
      %1 = arith.extf %t : bf16 to f32
      %2 = arith.mulf %0, %1 : f32
      %3 = arith.addf %sum, %2 : f32
      linalg.yield %3 : f32
    } -> tensor<1x8xf32>
    %g = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%p, %q : tensor<1x8xf32>, tensor<1x8xf32>) outs(%e : tensor<1x8xf32>) {
    ^bb0(%s: f32, %t: f32, %o: f32):
      %0 = arith.mulf %s, %t : f32
      linalg.yield %0 : f32
    } -> tensor<1x8xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %g into %out[0, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<1x8xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %y : tensor<1x8xf32>
}

// One alone leaves half of its instructions empty.

// CHECK-LABEL: gpu.func @one
// CHECK-SAME: mma_direct 1x8x64 on 1x1 warps
// CHECK-COUNT-4: nvgpu.mma.sync
// CHECK-NOT: nvgpu.mma.sync
// CHECK: gpu.return
func.func private @one(%x: tensor<1x64xbf16>, %v: tensor<8x64xbf16>) -> tensor<1x8xf32> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = [], mlirc.warps = 1 : i32} {
  %zero = arith.constant 0.0 : f32
  %r = tensor.empty() : tensor<1x8xf32>
  %y = scf.forall (%i) in (1) shared_outs(%out = %r) -> (tensor<1x8xf32>) {
    %e = tensor.empty() : tensor<1x8xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x8xf32>) -> tensor<1x8xf32>
    %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %v : tensor<1x64xbf16>, tensor<8x64xbf16>) outs(%f : tensor<1x8xf32>) attrs = {mlirc.mma = "mma_direct"} {
    ^bb0(%s: bf16, %t: bf16, %sum: f32):
      %0 = arith.extf %s : bf16 to f32
      %1 = arith.extf %t : bf16 to f32
      %2 = arith.mulf %0, %1 : f32
      %3 = arith.addf %sum, %2 : f32
      linalg.yield %3 : f32
    } -> tensor<1x8xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %p into %out[0, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<1x8xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %y : tensor<1x8xf32>
}
