#map = affine_map<(d0, d1, d2) -> (d0, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1)>
module {
  func.func private @matmul_5(%arg0: tensor<128x2048xf32>, %arg1: tensor<32000x2048xf32>) -> tensor<128x32000xf32> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["lm_head"]} {
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<128x32000xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<128x32000xf32>) -> tensor<128x32000xf32>
    %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<128x2048xf32>, tensor<32000x2048xf32>) outs(%1 : tensor<128x32000xf32>) {
    ^bb0(%in: f32, %in_0: f32, %out: f32):
      %3 = arith.mulf %in, %in_0 : f32
      %4 = arith.addf %out, %3 : f32
      linalg.yield %4 : f32
    } -> tensor<128x32000xf32>
    return %2 : tensor<128x32000xf32>
  }
}
