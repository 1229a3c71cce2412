#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1) -> (d0)>
#map2 = affine_map<(d0) -> (d0)>
#map3 = affine_map<(d0, d1) -> (d1)>
module {
  func.func private @reduction_0(%arg0: tensor<1379x768xf32>, %arg1: tensor<768xf32>, %arg2: tensor<768xf32>) -> tensor<1379x768xf32> attributes {mlirc.kernel, mlirc.kind = "reduction", mlirc.origin = ["vit.layers.*.layernorm_before", "vit.layers.*.layernorm_after"]} {
    %cst = arith.constant 9.99999996E-13 : f32
    %cst_0 = arith.constant 7.680000e+02 : f32
    %cst_1 = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<1379xf32>
    %1 = linalg.fill ins(%cst_1 : f32) outs(%0 : tensor<1379xf32>) -> tensor<1379xf32>
    %2 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "reduction"]} ins(%arg0 : tensor<1379x768xf32>) outs(%1 : tensor<1379xf32>) {
    ^bb0(%in: f32, %out: f32):
      %9 = arith.addf %in, %out : f32
      linalg.yield %9 : f32
    } -> tensor<1379xf32>
    %3 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel"]} ins(%2 : tensor<1379xf32>) outs(%0 : tensor<1379xf32>) {
    ^bb0(%in: f32, %out: f32):
      %9 = arith.divf %in, %cst_0 : f32
      linalg.yield %9 : f32
    } -> tensor<1379xf32>
    %4 = tensor.empty() : tensor<1379x768xf32>
    %5 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel"]} ins(%arg0, %3 : tensor<1379x768xf32>, tensor<1379xf32>) outs(%4 : tensor<1379x768xf32>) {
    ^bb0(%in: f32, %in_2: f32, %out: f32):
      %9 = arith.subf %in, %in_2 : f32
      %10 = arith.mulf %9, %9 : f32
      linalg.yield %10 : f32
    } -> tensor<1379x768xf32>
    %6 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "reduction"]} ins(%5 : tensor<1379x768xf32>) outs(%1 : tensor<1379xf32>) {
    ^bb0(%in: f32, %out: f32):
      %9 = arith.addf %in, %out : f32
      linalg.yield %9 : f32
    } -> tensor<1379xf32>
    %7 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel"]} ins(%6 : tensor<1379xf32>) outs(%0 : tensor<1379xf32>) {
    ^bb0(%in: f32, %out: f32):
      %9 = arith.divf %in, %cst_0 : f32
      %10 = arith.addf %9, %cst : f32
      %11 = math.rsqrt %10 : f32
      linalg.yield %11 : f32
    } -> tensor<1379xf32>
    %8 = linalg.generic {indexing_maps = [#map, #map1, #map1, #map3, #map3, #map], iterator_types = ["parallel", "parallel"]} ins(%arg0, %3, %7, %arg1, %arg2 : tensor<1379x768xf32>, tensor<1379xf32>, tensor<1379xf32>, tensor<768xf32>, tensor<768xf32>) outs(%4 : tensor<1379x768xf32>) {
    ^bb0(%in: f32, %in_2: f32, %in_3: f32, %in_4: f32, %in_5: f32, %out: f32):
      %9 = arith.subf %in, %in_2 : f32
      %10 = arith.mulf %9, %in_3 : f32
      %11 = arith.mulf %10, %in_4 : f32
      %12 = arith.addf %11, %in_5 : f32
      linalg.yield %12 : f32
    } -> tensor<1379x768xf32>
    return %8 : tensor<1379x768xf32>
  }
}
