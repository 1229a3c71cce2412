module {
  func.func private @attention_0(%arg0: tensor<1x32x128x64xbf16>, %arg1: tensor<1x4x128x64xbf16>, %arg2: tensor<1x128x4x64xbf16>) -> tensor<1x128x32x64xbf16> attributes {mlirc.kernel, mlirc.kind = "attention", mlirc.origin = ["model.layers.*.self_attn"]} {
    %0 = "mlirc.attention"(%arg0, %arg1, %arg2) {causal = true, layouts = ["bhsd", "bhsd", "bshd", "bshd"], scale = 1.250000e-01 : f64, softcap = 0.000000e+00 : f64, window = 0 : i64} : (tensor<1x32x128x64xbf16>, tensor<1x4x128x64xbf16>, tensor<1x128x4x64xbf16>) -> tensor<1x128x32x64xbf16>
    return %0 : tensor<1x128x32x64xbf16>
  }
}
