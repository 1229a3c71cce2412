// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script auto --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU

// A product with packed weights whose last ops place its rows: a block has 16 of one head, reads what it adds to them first, and
// writes them to the result that its head is of, or to the row of a pool that a number names.

// CHECK-LABEL: func.func private @matmul_0
// CHECK: scf.forall (%[[H:.*]]) in (3) shared_outs(%[[OWN:.*]] = %{{.*}}, %[[POOL:.*]] = %arg4)
// CHECK: tensor.extract_slice %arg2
// CHECK: tensor.extract %arg3
// CHECK: %[[PLACE:.*]] = arith.maxsi
// CHECK: linalg.generic {{.*}}mlirc.mma = "mma_direct"
// CHECK: tensor.parallel_insert_slice {{.*}} into %[[OWN]]
// CHECK: tensor.parallel_insert_slice {{.*}} into %[[POOL]][%[[PLACE]], 0] [1, %{{.*}}]

// GPU-LABEL: gpu.func @matmul_0
// GPU: nvgpu.mma.sync
// GPU: scf.if
// GPU: memref<2x16xf32>
// GPU: scf.if
// GPU: memref<10x16xf32>
// GPU-NOT: memref.alloc

#id = affine_map<(h, i, k) -> (h, i, k)>
#a = affine_map<(m, h, i, k) -> (m, k)>
#b = affine_map<(m, h, i, k) -> (h, i, k)>
#c = affine_map<(m, h, i, k) -> (m, h, i)>
#r = affine_map<(m, h, i) -> (m, h, i)>
#s = affine_map<(m, h, i) -> (i)>

func.func private @matmul_0(%x: tensor<1x256xbf16>, %words: tensor<48x32xi32>, %more: tensor<16xf32>, %numbers: tensor<1x1xi64>, %pool: tensor<10x16xf32>)
    -> (tensor<2x16xf32>, tensor<10x16xf32>) attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = []} {
  %zero = arith.constant 0.0 : f32
  %c15 = arith.constant 15 : i32
  %mark = arith.constant 17152 : i16
  %middle = arith.constant 1.360000e+02 : bf16
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c64 = arith.constant 64 : index
  %c128 = arith.constant 128 : index
  %r = tensor.empty() : tensor<1x3x16xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r : tensor<1x3x16xf32>) -> tensor<1x3x16xf32>
  %e = tensor.empty() : tensor<3x16x256xbf16>
  %w = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel", "parallel"]}
      outs(%e : tensor<3x16x256xbf16>) attrs = {mlirc.dequantize = 4 : i64} {
  ^bb0(%out: bf16):
    %head = linalg.index 0 : index
    %i = linalg.index 1 : index
    %first = arith.muli %head, %c16 : index
    %n = arith.addi %first, %i : index
    %k = linalg.index 2 : index
    %block = arith.divui %k, %c128 : index
    %0 = arith.muli %block, %c16 : index
    %run = arith.divui %k, %c16 : index
    %lane = arith.remui %run, %c4 : index
    %1 = arith.muli %lane, %c4 : index
    %2 = arith.addi %0, %1 : index
    %inside = arith.remui %k, %c128 : index
    %second = arith.divui %inside, %c64 : index
    %3 = arith.muli %second, %c2 : index
    %4 = arith.addi %2, %3 : index
    %eighth = arith.divui %k, %c8 : index
    %5 = arith.remui %eighth, %c2 : index
    %at = arith.addi %4, %5 : index
    %word = tensor.extract %words[%n, %at] : tensor<48x32xi32>
    %pair = arith.divui %k, %c2 : index
    %field = arith.remui %pair, %c4 : index
    %bits = arith.muli %field, %c4 : index
    %shift = arith.index_cast %bits : index to i32
    %6 = arith.shrui %word, %shift : i32
    %odd = arith.remui %k, %c2 : index
    %half = arith.muli %odd, %c16 : index
    %other = arith.index_cast %half : index to i32
    %7 = arith.shrui %6, %other : i32
    %8 = arith.andi %7, %c15 : i32
    %9 = arith.trunci %8 : i32 to i16
    %10 = arith.ori %9, %mark : i16
    %11 = arith.bitcast %10 : i16 to bf16
    %12 = arith.subf %11, %middle : bf16
    linalg.yield %12 : bf16
  } -> tensor<3x16x256xbf16>
  %y = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x256xbf16>, tensor<3x16x256xbf16>) outs(%f : tensor<1x3x16xf32>) {
  ^bb0(%p: bf16, %q: bf16, %sum: f32):
    %0 = arith.extf %p : bf16 to f32
    %1 = arith.extf %q : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %sum, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<1x3x16xf32>
  %z = linalg.generic {indexing_maps = [#r, #s, #r], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%y, %more : tensor<1x3x16xf32>, tensor<16xf32>) outs(%r : tensor<1x3x16xf32>) {
  ^bb0(%p: f32, %q: f32, %out: f32):
    %0 = arith.addf %p, %q : f32
    linalg.yield %0 : f32
  } -> tensor<1x3x16xf32>
  %own = tensor.extract_slice %z[0, 0, 0] [1, 2, 16] [1, 1, 1] : tensor<1x3x16xf32> to tensor<2x16xf32>
  %last = tensor.extract_slice %z[0, 2, 0] [1, 1, 16] [1, 1, 1] : tensor<1x3x16xf32> to tensor<1x16xf32>
  %new = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(true) ins(%last, %numbers : tensor<1x16xf32>, tensor<1x1xi64>)
      outs(%pool : tensor<10x16xf32>) {
  ^bb0(%p: f32, %q: f32):
    tm_tensor.yield %p : f32
  } -> tensor<10x16xf32>
  return %own, %new : tensor<2x16xf32>, tensor<10x16xf32>
}
