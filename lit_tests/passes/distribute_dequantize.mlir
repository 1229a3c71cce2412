// RUN: %mlirc-opt %s --target sm_80 --script matmul:block_k=32 --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// A packed weight is unpacked in the fragments of mma.sync: of a slice of 32 along k, a lane has a word of each of its
// columns, whose halves are neighbours. No word goes through shared memory, and none is loaded twice.

#id = affine_map<(d0, d1) -> (d0, d1)>
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>

// CHECK-LABEL: gpu.func @packed
// CHECK-SAME: B bf16 in registers
// CHECK: scf.for
// CHECK-NOT: memref.store
// CHECK: memref.load {{.*}} : memref<32x32xi32>
// CHECK: vector.bitcast {{.*}} : vector<1xi32> to vector<2xi16>
// CHECK-NOT: memref.load
// CHECK: nvgpu.mma.sync
// CHECK: scf.yield
func.func private @packed(%x: tensor<16x256xbf16>, %words: tensor<32x32xi32>) -> tensor<16x32xf32> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = []} {
  %zero = arith.constant 0.0 : f32
  %c15 = arith.constant 15 : i32
  %mark = arith.constant 17152 : i16
  %middle = arith.constant 1.360000e+02 : bf16
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %r = tensor.empty() : tensor<16x32xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r : tensor<16x32xf32>) -> tensor<16x32xf32>
  %e = tensor.empty() : tensor<32x256xbf16>
  %w = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<32x256xbf16>) attrs = {mlirc.dequantize} {
  ^bb0(%out: bf16):
    %n = linalg.index 0 : index
    %k = linalg.index 1 : index
    %block = arith.divui %k, %c32 : index
    %first = arith.muli %block, %c4 : index
    %eighth = arith.remui %k, %c8 : index
    %lane = arith.divui %eighth, %c2 : index
    %at = arith.addi %first, %lane : index
    %word = tensor.extract %words[%n, %at] : tensor<32x32xi32>
    %h = arith.divui %k, %c8 : index
    %field = arith.remui %h, %c4 : index
    %bits = arith.muli %field, %c4 : index
    %shift = arith.index_cast %bits : index to i32
    %0 = arith.shrui %word, %shift : i32
    %odd = arith.remui %k, %c2 : index
    %half = arith.muli %odd, %c16 : index
    %other = arith.index_cast %half : index to i32
    %1 = arith.shrui %0, %other : i32
    %2 = arith.andi %1, %c15 : i32
    %3 = arith.trunci %2 : i32 to i16
    %4 = arith.ori %3, %mark : i16
    %5 = arith.bitcast %4 : i16 to bf16
    %6 = arith.subf %5, %middle : bf16
    linalg.yield %6 : bf16
  } -> tensor<32x256xbf16>
  %y = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<16x256xbf16>, tensor<32x256xbf16>) outs(%f : tensor<16x32xf32>) {
  ^bb0(%p: bf16, %q: bf16, %sum: f32):
    %0 = arith.extf %p : bf16 to f32
    %1 = arith.extf %q : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %sum, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<16x32xf32>
  return %y : tensor<16x32xf32>
}
