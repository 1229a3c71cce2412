// RUN: %mlirc-opt %s --pass mlirc-distribute | %filecheck %s
// RUN: sed -e '/LATE/d' -e 's|// MOVED:||' %s | %mlirc-opt - --pass mlirc-distribute | %filecheck %s --check-prefix=EARLY

// A product by wgmma is under way until somebody reads it: here two do, and the first one waits. The slot that it reads
// is given back behind them, without another wait.
// CHECK-LABEL: gpu.func @read
// CHECK: scf.for
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK-NOT: nvvm.mbarrier.try_wait
// CHECK-COUNT-4: nvvm.wgmma.mma_async
// CHECK: nvvm.wgmma.commit.group
// CHECK-NOT: mulf
// CHECK: nvvm.wgmma.wait.group.sync.aligned 0
// CHECK: arith.mulf
// CHECK-NOT: nvvm.wgmma.wait
// CHECK: nvvm.mbarrier.arrive %
// CHECK: scf.yield
// CHECK-NOT: nvvm.wgmma.wait
// CHECK: } else {

// A slot that is given back in front of the readers waits for the product, and they do not.
// EARLY-LABEL: gpu.func @read
// EARLY: nvvm.wgmma.commit.group
// EARLY-NEXT: nvvm.wgmma.wait.group.sync.aligned 0
// EARLY: nvvm.mbarrier.arrive %
// EARLY: arith.mulf
// EARLY-NOT: nvvm.wgmma.wait
// EARLY: } else {

#ak = affine_map<(m, n, k) -> (m, k)>
#bk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
func.func @read(%a: tensor<64x192xbf16>, %b: tensor<64x192xbf16>) -> tensor<64x64xf32>
    attributes {mlirc.kernel, mlirc.warps = 4 : i32} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c192 = arith.constant 192 : index
  %e = tensor.empty() : tensor<64x64xf32>
  %r = scf.forall (%i) in (1) shared_outs(%o = %e) -> (tensor<64x64xf32>) {
    %ring = "mlirc.make_ring"() {copy = "tma", depth = 2 : i64, slots = [
        {swizzle = 128 : i64, tile = tensor<64x64xbf16>}, {swizzle = 128 : i64, tile = tensor<64x64xbf16>}]} : () -> !mlirc.ring
    %d = "mlirc.roles"() ({
      scf.for %k = %c0 to %c192 step %c64 {
        %sa = tensor.extract_slice %a[0, %k] [64, 64] [1, 1] : tensor<64x192xbf16> to tensor<64x64xbf16>
        "mlirc.put"(%ring, %sa) {tile = 0 : i64} : (!mlirc.ring, tensor<64x64xbf16>) -> ()
        %sb = tensor.extract_slice %b[0, %k] [64, 64] [1, 1] : tensor<64x192xbf16> to tensor<64x64xbf16>
        "mlirc.put"(%ring, %sb) {tile = 1 : i64} : (!mlirc.ring, tensor<64x64xbf16>) -> ()
      }
      "mlirc.yield"() : () -> ()
    }, {
      %z = tensor.empty() : tensor<64x64xf32>
      %f = linalg.fill ins(%zero : f32) outs(%z : tensor<64x64xf32>) -> tensor<64x64xf32>
      %s = scf.for %k = %c0 to %c192 step %c64 iter_args(%acc = %f) -> (tensor<64x64xf32>) {
        %ta = "mlirc.get"(%ring) {tile = 0 : i64} : (!mlirc.ring) -> tensor<64x64xbf16>
        %tb = "mlirc.get"(%ring) {tile = 1 : i64} : (!mlirc.ring) -> tensor<64x64xbf16>
        %p = linalg.generic {indexing_maps = [#ak, #bk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
            ins(%ta, %tb : tensor<64x64xbf16>, tensor<64x64xbf16>) outs(%f : tensor<64x64xf32>) attrs = {mlirc.mma = "wgmma", mlirc.warp_grid = array<i64: 4, 1>} {
        ^bb0(%x: bf16, %y: bf16, %c: f32):
          %xf = arith.extf %x : bf16 to f32
          %yf = arith.extf %y : bf16 to f32
          %xy = arith.mulf %xf, %yf : f32
          %sum = arith.addf %c, %xy : f32
          linalg.yield %sum : f32
        } -> tensor<64x64xf32>
        // MOVED:"mlirc.release"(%ring) {lag = 0 : i64} : (!mlirc.ring) -> ()
        %u = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
            ins(%p : tensor<64x64xf32>) outs(%z : tensor<64x64xf32>) {
        ^bb0(%x: f32, %c: f32):
          %y = arith.mulf %x, %x : f32
          linalg.yield %y : f32
        } -> tensor<64x64xf32>
        %v = linalg.generic {indexing_maps = [#id, #id, #id, #id], iterator_types = ["parallel", "parallel"]}
            ins(%acc, %u, %p : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) outs(%z : tensor<64x64xf32>) {
        ^bb0(%x: f32, %q: f32, %w: f32, %c: f32):
          %y = arith.addf %x, %q : f32
          %t = arith.addf %y, %w : f32
          linalg.yield %t : f32
        } -> tensor<64x64xf32>
        "mlirc.release"(%ring) {lag = 0 : i64} : (!mlirc.ring) -> ()  // LATE
        scf.yield %v : tensor<64x64xf32>
      }
      "mlirc.yield"(%s) : (tensor<64x64xf32>) -> ()
    }) {warps = array<i64: 1, 4>} : () -> tensor<64x64xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %d into %o[0, 0] [64, 64] [1, 1] : tensor<64x64xf32> into tensor<64x64xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<64x64xf32>
}
