module {
  func.func private @matmul_1(%arg0: tensor<7x2048xf32>, %arg1: tensor<256x2048xf32>) -> tensor<7x256xf32> attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["model.layers.*.self_attn.k_proj", "model.layers.*.self_attn.v_proj"]} {
    %cst = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<7x256xf32>
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<7x256xf32>) -> tensor<7x256xf32>
    %2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : tensor<7x2048xf32>, tensor<256x2048xf32>) outs(%1 : tensor<7x256xf32>) {
    ^bb0(%in: f32, %in_0: f32, %out: f32):
      %3 = arith.mulf %in, %in_0 : f32
      %4 = arith.addf %out, %3 : f32
      linalg.yield %4 : f32
    } -> tensor<7x256xf32>
    return %2 : tensor<7x256xf32>
  }
}
