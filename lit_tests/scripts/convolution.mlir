// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script auto --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU
// RUN: %mlirc-opt %s --script auto --target sm_80 | %filecheck %s --check-prefix=OLD

// A convolution is a GEMM whose left operand is a view of the image: 60 pixels are rows, across rows and images.

// CHECK-LABEL: func.func @matmul_0
// CHECK: %[[A:.*]] = "mlirc.im2col"(%arg0) {{.*}} : (tensor<2x10x12x64xbf16>) -> tensor<60x576xbf16>
// CHECK: scf.forall
// CHECK: scf.for %[[K:.*]] = {{.*}} step %c64
// CHECK: tensor.extract_slice %[[A]][{{.*}}, %[[K]]] [{{.*}}, 64] [1, 1]
// CHECK: linalg.generic {{.*}}mlirc.copy = "tma"{{.*}}mlirc.mma = "wgmma"

// Its slices come by im2col copies: from the corner -1 on, every second pixel, 5 of 10 rows and 6 of 12 columns.

// GPU: gpu.func @matmul_0
// GPU: nvvm.cp.async.bulk.tensor.shared.cluster.global {{.*}} im2col[%{{.*}}, %{{.*}}] {mode = #nvvm.tma_load_mode<im2col>}
// GPU: "mlirc.tensor_map"(%arg0) {{.*}}im2col = array<i64: -1, -1, -2, -2, 2, 2>

// Without tensor copies a block computes them in its loop.

// OLD-NOT: mlirc.im2col
// OLD: scf.for
// OLD: tensor.extract %arg0

#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map3 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map4 = affine_map<(d0, d1) -> (d1)>
func.func @matmul_0(%arg0: tensor<2x10x12x64xbf16>, %arg1: tensor<72x576xbf16>, %arg2: tensor<72xf32>) -> tensor<60x72xbf16> attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %0 = tensor.empty() : tensor<60x576xbf16>
  %1 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<60x576xbf16>) attrs =  {mlirc.gather_windows = {channels = 64 : i64, dilations = array<i64: 1, 1>, kernel = array<i64: 3, 3>, low = array<i64: 1, 1>, out = array<i64: 5, 6>, strides = array<i64: 2, 2>}} {
  ^bb0(%out: bf16):
    %7 = linalg.index 0 : index
    %c6 = arith.constant 6 : index
    %8 = arith.divui %7, %c6 : index
    %c5 = arith.constant 5 : index
    %9 = arith.remui %8, %c5 : index
    %c2 = arith.constant 2 : index
    %10 = arith.muli %9, %c2 : index
    %11 = linalg.index 1 : index
    %c192 = arith.constant 192 : index
    %12 = arith.divui %11, %c192 : index
    %13 = arith.addi %10, %12 : index
    %c-1 = arith.constant -1 : index
    %14 = arith.addi %13, %c-1 : index
    %c0 = arith.constant 0 : index
    %15 = arith.cmpi sge, %14, %c0 : index
    %16 = arith.remui %7, %c6 : index
    %17 = arith.muli %16, %c2 : index
    %c64 = arith.constant 64 : index
    %18 = arith.divui %11, %c64 : index
    %c3 = arith.constant 3 : index
    %19 = arith.remui %18, %c3 : index
    %20 = arith.addi %17, %19 : index
    %21 = arith.addi %20, %c-1 : index
    %22 = arith.cmpi sge, %21, %c0 : index
    %23 = arith.andi %15, %22 : i1
    %c30 = arith.constant 30 : index
    %24 = arith.divui %7, %c30 : index
    %c0_0 = arith.constant 0 : index
    %25 = arith.maxsi %14, %c0_0 : index
    %26 = arith.maxsi %21, %c0_0 : index
    %27 = arith.remui %11, %c64 : index
    %extracted = tensor.extract %arg0[%24, %25, %26, %27] : tensor<2x10x12x64xbf16>
    %cst_1 = arith.constant 0.000000e+00 : bf16
    %28 = arith.select %23, %extracted, %cst_1 : bf16
    linalg.yield %28 : bf16
  } -> tensor<60x576xbf16>
  %cst = arith.constant 0.000000e+00 : f32
  %2 = tensor.empty() : tensor<60x72xf32>
  %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<60x72xf32>) -> tensor<60x72xf32>
  %4 = linalg.generic {indexing_maps = [#map1, #map2, #map3], iterator_types = ["parallel", "parallel", "reduction"]} ins(%1, %arg1 : tensor<60x576xbf16>, tensor<72x576xbf16>) outs(%3 : tensor<60x72xf32>) {
  ^bb0(%in: bf16, %in_0: bf16, %out: f32):
    %7 = arith.extf %in : bf16 to f32
    %8 = arith.extf %in_0 : bf16 to f32
    %9 = arith.mulf %7, %8 : f32
    %10 = arith.addf %out, %9 : f32
    linalg.yield %10 : f32
  } -> tensor<60x72xf32>
  %5 = tensor.empty() : tensor<60x72xbf16>
  %6 = linalg.generic {indexing_maps = [#map, #map4, #map], iterator_types = ["parallel", "parallel"]} ins(%4, %arg2 : tensor<60x72xf32>, tensor<72xf32>) outs(%5 : tensor<60x72xbf16>) {
  ^bb0(%in: f32, %in_0: f32, %out: bf16):
    %7 = arith.addf %in, %in_0 : f32
    %8 = arith.maximumf %7, %cst : f32
    %9 = arith.truncf %8 : f32 to bf16
    linalg.yield %9 : bf16
  } -> tensor<60x72xbf16>
  return %6 : tensor<60x72xbf16>
}

