// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %mlirc-opt - | %filecheck %s

// Eight warps compute and a ninth copies, by tensor maps that the host makes; each slot of the ring has an mbarrier that
// its copies complete and one at which eight warps arrive. Four blocks compute eight tiles in two turns; results leave
// through shared memory, by a copy of 16 rows of each warp.
// CHECK-LABEL: gpu.func @product
// CHECK-SAME: %[[A:arg[0-9]+]]: !llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>}
// CHECK-SAME: known_block_size = array<i32: 288, 1, 1>
// CHECK: memref.view %{{.*}} to memref<4x128x64xbf16, #gpu.address_space<workgroup>>
// CHECK: memref.view %{{.*}} to memref<4x64x64xbf16, #gpu.address_space<workgroup>>
// CHECK: %[[COMPUTES:.*]] = arith.cmpi slt, %{{.*}}, %c8 : index
// CHECK: nvvm.mbarrier.init %{{.*}}, %c1_i32
// CHECK: nvvm.mbarrier.init %{{.*}}, %c8_i32
// CHECK: nvvm.fence.mbarrier.init
// CHECK: gpu.barrier
// CHECK: scf.if %[[COMPUTES]] {
// CHECK: scf.for
// CHECK: scf.for %{{.*}} = %c0 to %c256 step %c64 iter_args
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK: nvvm.wgmma.mma_async
// CHECK: nvvm.wgmma.wait.group.sync.aligned 1
// CHECK: nvvm.mbarrier.arrive %
// CHECK: scf.yield
// CHECK: nvvm.wgmma.wait.group.sync.aligned 0
// CHECK: nvvm.mbarrier.arrive %
// CHECK: nvvm.cp.async.bulk.wait_group 0 {read}
// CHECK: vector.store {{.*}} memref<8x2x16x64xbf16, #gpu.address_space<workgroup>>
// CHECK: nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>
// CHECK: nvvm.cp.async.bulk.tensor.global.shared.cta
// CHECK: nvvm.cp.async.bulk.commit.group
// CHECK: nvvm.cp.async.bulk.wait_group 0
// CHECK: } else {
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK: nvvm.mbarrier.arrive.expect_tx %{{.*}}, %c24576_i32
// CHECK: nvvm.cp.async.bulk.tensor.shared.cluster.global %{{.*}}, %[[A]]
// CHECK: nvvm.cp.async.bulk.tensor.shared.cluster.global
// CHECK-LABEL: func.func @product
// CHECK: "mlirc.tensor_map"(%arg0) {box = array<i64: 128, 64>, swizzle = 128 : i64}
// CHECK: "mlirc.tensor_map"(%arg1) {box = array<i64: 64, 64>, swizzle = 128 : i64}
// CHECK: "mlirc.tensor_map"(%arg2) {box = array<i64: 16, 64>, swizzle = 128 : i64}
// CHECK: gpu.launch_func {{.*}} blocks in (%c4, %c1, %c1) threads in (%c288, %c1, %c1)
func.func @product(%a: tensor<256x256xbf16>, %b: tensor<256x256xbf16>) -> tensor<256x256xbf16>
    attributes {mlirc.kernel, mlirc.warps = 8 : i32} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c256 = arith.constant 256 : index
  %e = tensor.empty() : tensor<256x256xbf16>
  %r = scf.forall (%i, %j) in (2, 4) shared_outs(%o = %e) -> (tensor<256x256xbf16>) {
    %m = affine.apply affine_map<(d0) -> (d0 * 128)>(%i)
    %n = affine.apply affine_map<(d0) -> (d0 * 64)>(%j)
    %ce = tensor.empty() : tensor<128x64xf32>
    %cf = linalg.fill ins(%zero : f32) outs(%ce : tensor<128x64xf32>) -> tensor<128x64xf32>
    %c = scf.for %k = %c0 to %c256 step %c64 iter_args(%acc = %cf) -> (tensor<128x64xf32>) {
      %ta = tensor.extract_slice %a[%m, %k] [128, 64] [1, 1] : tensor<256x256xbf16> to tensor<128x64xbf16>
      %tb = tensor.extract_slice %b[%n, %k] [64, 64] [1, 1] : tensor<256x256xbf16> to tensor<64x64xbf16>
      %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%ta, %tb : tensor<128x64xbf16>, tensor<64x64xbf16>) outs(%acc : tensor<128x64xf32>)
          attrs = {mlirc.mma = "wgmma", mlirc.copy = "tma", mlirc.warp_grid = array<i64: 8, 1>} {
      ^bb0(%x: bf16, %y: bf16, %s: f32):
        %xe = arith.extf %x : bf16 to f32
        %ye = arith.extf %y : bf16 to f32
        %xy = arith.mulf %xe, %ye : f32
        %t = arith.addf %s, %xy : f32
        linalg.yield %t : f32
      } -> tensor<128x64xf32>
      scf.yield %p : tensor<128x64xf32>
    } {mlirc.stages = 4 : i32, mlirc.producers = 1 : i32}
    %de = tensor.empty() : tensor<128x64xbf16>
    %d = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]} ins(%c : tensor<128x64xf32>) outs(%de : tensor<128x64xbf16>) {
    ^bb0(%x: f32, %y: bf16):
      %t = arith.truncf %x : f32 to bf16
      linalg.yield %t : bf16
    } -> tensor<128x64xbf16>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %d into %o[%m, %n] [128, 64] [1, 1] : tensor<128x64xbf16> into tensor<256x256xbf16>
    }
  } {mlirc.persist = 4 : i32, mlirc.store = "tma"}
  return %r : tensor<256x256xbf16>
}
