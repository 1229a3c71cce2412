#map = affine_map<(d0, d1, d2) -> (d0, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map3 = affine_map<(d0, d1) -> (d0, d1)>
module {
  func.func private @matmul_3(%arg0: tensor<128x1024xbf16>, %arg1: tensor<3072x1024xbf16>, %arg2: tensor<3072x1024xbf16>) -> tensor<128x3072xbf16> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["model.layers.*.mlp.gate_proj", "model.layers.*.mlp.act_fn", "model.layers.*.mlp.up_proj", "model.layers.*.mlp"]} {
    %cst = arith.constant 1.000000e+00 : f32
    %cst_0 = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<128x3072xf32>
    %1 = linalg.fill ins(%cst_0 : f32) outs(%0 : tensor<128x3072xf32>) -> tensor<128x3072xf32>
    %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<128x1024xbf16>, tensor<3072x1024xbf16>) outs(%1 : tensor<128x3072xf32>) {
    ^bb0(%in: bf16, %in_1: bf16, %out: f32):
      %6 = arith.extf %in : bf16 to f32
      %7 = arith.extf %in_1 : bf16 to f32
      %8 = arith.mulf %6, %7 : f32
      %9 = arith.addf %out, %8 : f32
      linalg.yield %9 : f32
    } -> tensor<128x3072xf32>
    %3 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg2 : tensor<128x1024xbf16>, tensor<3072x1024xbf16>) outs(%1 : tensor<128x3072xf32>) {
    ^bb0(%in: bf16, %in_1: bf16, %out: f32):
      %6 = arith.extf %in : bf16 to f32
      %7 = arith.extf %in_1 : bf16 to f32
      %8 = arith.mulf %6, %7 : f32
      %9 = arith.addf %out, %8 : f32
      linalg.yield %9 : f32
    } -> tensor<128x3072xf32>
    %4 = tensor.empty() : tensor<128x3072xbf16>
    %5 = linalg.generic {indexing_maps = [#map3, #map3, #map3], iterator_types = ["parallel", "parallel"]} ins(%2, %3 : tensor<128x3072xf32>, tensor<128x3072xf32>) outs(%4 : tensor<128x3072xbf16>) {
    ^bb0(%in: f32, %in_1: f32, %out: bf16):
      %6 = arith.truncf %in : f32 to bf16
      %7 = arith.extf %6 : bf16 to f32
      %8 = arith.negf %7 : f32
      %9 = math.exp %8 : f32
      %10 = arith.addf %9, %cst : f32
      %11 = arith.divf %cst, %10 : f32
      %12 = arith.mulf %11, %7 : f32
      %13 = arith.truncf %12 : f32 to bf16
      %14 = arith.truncf %in_1 : f32 to bf16
      %15 = arith.mulf %13, %14 : bf16
      linalg.yield %15 : bf16
    } -> tensor<128x3072xbf16>
    return %5 : tensor<128x3072xbf16>
  }
}
