// RUN: %mlirc-opt %s --script 'packed_rows:warps=1' --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// Numbers of packed weights are multiplied as they are, and the sums of a group, which begin with zero, by its scale in f32.

#id = affine_map<(d0, d1) -> (d0, d1)>
#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>

// CHECK-LABEL: gpu.func @groups
// CHECK-NOT: arith.mulf
// CHECK: arith.subf
// CHECK-NOT: arith.mulf
// CHECK-COUNT-8: nvgpu.mma.sync
// CHECK: %[[S:.*]] = arith.extf %{{.*}} : bf16 to f32
// CHECK: vector.broadcast %[[S]] : f32 to vector<2xf32>
// CHECK: math.fma {{.*}} : vector<2xf32>
// CHECK-COUNT-8: nvgpu.mma.sync
// CHECK: math.fma {{.*}} : vector<2xf32>
// CHECK: gpu.return
func.func private @groups(%x: tensor<1x256xbf16>, %words: tensor<40x32xi32>, %scales: tensor<40x2xbf16>) -> tensor<1x40xf32> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = []} {
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
  %r = tensor.empty() : tensor<1x40xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r : tensor<1x40xf32>) -> tensor<1x40xf32>
  %e = tensor.empty() : tensor<40x256xbf16>
  %w = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<40x256xbf16>) attrs = {mlirc.dequantize = 4 : i64} {
  ^bb0(%out: bf16):
    %n = linalg.index 0 : index
    %k = linalg.index 1 : index
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
    %word = tensor.extract %words[%n, %at] : tensor<40x32xi32>
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
    %scale = tensor.extract %scales[%n, %block] : tensor<40x2xbf16>
    %13 = arith.mulf %12, %scale : bf16
    linalg.yield %13 : bf16
  } -> tensor<40x256xbf16>
  %y = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x256xbf16>, tensor<40x256xbf16>) outs(%f : tensor<1x40xf32>) {
  ^bb0(%p: bf16, %q: bf16, %sum: f32):
    %0 = arith.extf %p : bf16 to f32
    %1 = arith.extf %q : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %sum, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<1x40xf32>
  return %y : tensor<1x40xf32>
}

// A step of 64 k has two groups of 32: the weights are multiplied with their scales.

// CHECK-LABEL: gpu.func @small_groups
// CHECK: arith.mulf {{.*}} : vector<{{.*}}xbf16>
// CHECK-NOT: math.fma
// CHECK: gpu.return
func.func private @small_groups(%x: tensor<1x256xbf16>, %words: tensor<40x32xi32>, %scales: tensor<40x8xbf16>) -> tensor<1x40xf32> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = []} {
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
  %r = tensor.empty() : tensor<1x40xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r : tensor<1x40xf32>) -> tensor<1x40xf32>
  %e = tensor.empty() : tensor<40x256xbf16>
  %w = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel"]}
      outs(%e : tensor<40x256xbf16>) attrs = {mlirc.dequantize = 4 : i64} {
  ^bb0(%out: bf16):
    %n = linalg.index 0 : index
    %k = linalg.index 1 : index
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
    %word = tensor.extract %words[%n, %at] : tensor<40x32xi32>
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
    %c32 = arith.constant 32 : index
    %group = arith.divui %k, %c32 : index
    %scale = tensor.extract %scales[%n, %group] : tensor<40x8xbf16>
    %13 = arith.mulf %12, %scale : bf16
    linalg.yield %13 : bf16
  } -> tensor<40x256xbf16>
  %y = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x256xbf16>, tensor<40x256xbf16>) outs(%f : tensor<1x40xf32>) {
  ^bb0(%p: bf16, %q: bf16, %sum: f32):
    %0 = arith.extf %p : bf16 to f32
    %1 = arith.extf %q : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %sum, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<1x40xf32>
  return %y : tensor<1x40xf32>
}
