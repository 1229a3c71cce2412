#map = affine_map<(d0, d1, d2) -> (d0, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map3 = affine_map<(d0, d1) -> (d0, d1)>
module {
  func.func private @matmul_2(%arg0: tensor<128x2048xf32>, %arg1: tensor<2048x2048xf32>, %arg2: tensor<128x2048xf32>) -> tensor<128x2048xf32> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["model.layers.*.self_attn.o_proj", "model.layers.*"]} {
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<128x2048xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<128x2048xf32>) -> tensor<128x2048xf32>
    %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<128x2048xf32>, tensor<2048x2048xf32>) outs(%1 : tensor<128x2048xf32>) {
    ^bb0(%in: f32, %in_0: f32, %out: f32):
      %4 = arith.mulf %in, %in_0 : f32
      %5 = arith.addf %out, %4 : f32
      linalg.yield %5 : f32
    } -> tensor<128x2048xf32>
    %3 = linalg.generic {indexing_maps = [#map3, #map3, #map3], iterator_types = ["parallel", "parallel"]} ins(%arg2, %2 : tensor<128x2048xf32>, tensor<128x2048xf32>) outs(%0 : tensor<128x2048xf32>) {
    ^bb0(%in: f32, %in_0: f32, %out: f32):
      %4 = arith.addf %in, %in_0 : f32
      linalg.yield %4 : f32
    } -> tensor<128x2048xf32>
    return %3 : tensor<128x2048xf32>
  }
}
