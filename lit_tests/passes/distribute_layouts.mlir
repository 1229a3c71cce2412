// RUN: %mlirc-opt %s --target sm_90a --pass mlirc-distribute | %filecheck %s
// RUN: %mlirc-opt %s --target sm_80 --pass mlirc-distribute | %filecheck %s --check-prefix=AMPERE

// A tile that is asked for in another register layout than it has: what costs least is taken, and told.

// Two reductions whose rows lie in other lanes: each element is in its warp, so lanes exchange words; no selection, since
// every lane wants the same register of another.
// CHECK-LABEL: gpu.func @shuffles
// CHECK-SAME: mlirc.layouts = ["f32 16 from (l16:2) to (r8 l2:16): 8 shuffles, 0 selections"]
// CHECK-SAME: mlirc.smem = 0
// CHECK-COUNT-8: gpu.shuffle idx
// CHECK-NOT: gpu.shuffle idx
// CHECK-LABEL: func.func @shuffles
func.func @shuffles(%x: tensor<16x64xf32>, %z: tensor<16x8xf32>) -> tensor<16xf32>
    attributes {mlirc.kernel, mlirc.warps = 1 : i32} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16xf32>
  %r = scf.forall (%i) in (1) shared_outs(%o = %e) -> (tensor<16xf32>) {
    %tx = tensor.extract_slice %x[0, 0] [16, 64] [1, 1] : tensor<16x64xf32> to tensor<16x64xf32>
    %tz = tensor.extract_slice %z[0, 0] [16, 8] [1, 1] : tensor<16x8xf32> to tensor<16x8xf32>
    %d = tensor.empty() : tensor<16xf32>
    %f = linalg.fill ins(%zero : f32) outs(%d : tensor<16xf32>) -> tensor<16xf32>
    %a = linalg.generic {indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (a)>],
        iterator_types = ["parallel", "reduction"]} ins(%tx : tensor<16x64xf32>) outs(%f : tensor<16xf32>) {
    ^bb0(%u: f32, %v: f32):
      %m = arith.addf %v, %u : f32
      linalg.yield %m : f32
    } -> tensor<16xf32>
    %b = linalg.generic {indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (a)>],
        iterator_types = ["parallel", "reduction"]} ins(%tz : tensor<16x8xf32>) outs(%f : tensor<16xf32>) {
    ^bb0(%u: f32, %v: f32):
      %m = arith.addf %v, %u : f32
      linalg.yield %m : f32
    } -> tensor<16xf32>
    %s = linalg.generic {indexing_maps = [affine_map<(a) -> (a)>, affine_map<(a) -> (a)>, affine_map<(a) -> (a)>],
        iterator_types = ["parallel"]} ins(%a, %b : tensor<16xf32>, tensor<16xf32>) outs(%d : tensor<16xf32>) {
    ^bb0(%u: f32, %v: f32, %w: f32):
      %m = arith.mulf %u, %v : f32
      linalg.yield %m : f32
    } -> tensor<16xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[0] [16] [1] : tensor<16xf32> into tensor<16xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<16xf32>
}
// -----
// Products by mma and by fma in one block: sums of 16 bits go to the other's layout through shared memory, by stmatrix
// where there is one, a matrix of 8x8 a word otherwise.
// CHECK-LABEL: gpu.func @matrices
// CHECK-SAME: "bf16 32x32 from {{.*}}: through 32x32 of shared memory, rows swizzled over 64 bytes, 0 bank conflicts a warp, stmatrix, within warps"
// CHECK: nvvm.bar.warp.sync
// CHECK: nvvm.stmatrix
// CHECK: nvvm.stmatrix
// CHECK-NOT: nvvm.stmatrix
// CHECK-NOT: gpu.barrier
// CHECK: nvvm.bar.warp.sync
// CHECK: memref.load %{{.*}} : memref<32x32xbf16, #gpu.address_space<workgroup>>
// CHECK-LABEL: func.func @matrices
// AMPERE-LABEL: gpu.func @matrices
// AMPERE-SAME: "bf16 32x32 from {{.*}}: through 32x32 of shared memory, rows swizzled over 64 bytes, 0 bank conflicts a warp, within warps"
// AMPERE-NOT: nvvm.stmatrix
// AMPERE: vector.store %{{.*}} : memref<32x32xbf16, #gpu.address_space<workgroup>>, vector<2xbf16>
// AMPERE: nvvm.bar.warp.sync
// AMPERE-LABEL: func.func @matrices
func.func @matrices(%x: tensor<32x16xbf16>, %y: tensor<32x16xbf16>, %p: tensor<32x16xf32>, %q: tensor<32x16xf32>)
    -> tensor<32x32xf32> attributes {mlirc.kernel, mlirc.warps = 2 : i32} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x32xf32>
  %r = scf.forall (%i) in (1) shared_outs(%o = %e) -> (tensor<32x32xf32>) {
    %tx = tensor.extract_slice %x[0, 0] [32, 16] [1, 1] : tensor<32x16xbf16> to tensor<32x16xbf16>
    %ty = tensor.extract_slice %y[0, 0] [32, 16] [1, 1] : tensor<32x16xbf16> to tensor<32x16xbf16>
    %tp = tensor.extract_slice %p[0, 0] [32, 16] [1, 1] : tensor<32x16xf32> to tensor<32x16xf32>
    %tq = tensor.extract_slice %q[0, 0] [32, 16] [1, 1] : tensor<32x16xf32> to tensor<32x16xf32>
    %d = tensor.empty() : tensor<32x32xf32>
    %h = tensor.empty() : tensor<32x32xbf16>
    %f = linalg.fill ins(%zero : f32) outs(%d : tensor<32x32xf32>) -> tensor<32x32xf32>
    %a = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
        affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%tx, %ty : tensor<32x16xbf16>, tensor<32x16xbf16>) outs(%f : tensor<32x32xf32>)
        attrs = {mlirc.mma = "mma"} {
    ^bb0(%u: bf16, %v: bf16, %s: f32):
      %ue = arith.extf %u : bf16 to f32
      %ve = arith.extf %v : bf16 to f32
      %uv = arith.mulf %ue, %ve : f32
      %t = arith.addf %s, %uv : f32
      linalg.yield %t : f32
    } -> tensor<32x32xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]} ins(%a : tensor<32x32xf32>) outs(%h : tensor<32x32xbf16>) {
    ^bb0(%u: f32, %v: bf16):
      %t = arith.truncf %u : f32 to bf16
      linalg.yield %t : bf16
    } -> tensor<32x32xbf16>
    %b = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
        affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%tp, %tq : tensor<32x16xf32>, tensor<32x16xf32>) outs(%f : tensor<32x32xf32>)
        attrs = {mlirc.mma = "fma"} {
    ^bb0(%u: f32, %v: f32, %s: f32):
      %uv = arith.mulf %u, %v : f32
      %t = arith.addf %s, %uv : f32
      linalg.yield %t : f32
    } -> tensor<32x32xf32>
    %s = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>,
        affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
        ins(%b, %n : tensor<32x32xf32>, tensor<32x32xbf16>) outs(%d : tensor<32x32xf32>) {
    ^bb0(%u: f32, %v: bf16, %w: f32):
      %ve = arith.extf %v : bf16 to f32
      %m = arith.addf %u, %ve : f32
      linalg.yield %m : f32
    } -> tensor<32x32xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[0, 0] [32, 32] [1, 1] : tensor<32x32xf32> into tensor<32x32xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<32x32xf32>
}
