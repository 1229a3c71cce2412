module {
  func.func private @attention_0(%arg0: tensor<1x128x8x64xbf16>, %arg1: tensor<1x128x8x64xbf16>, %arg2: tensor<1x128x8x64xbf16>, %arg3: tensor<1x8x128x128xbf16>) -> tensor<1x128x8x64xbf16> attributes {mlirc.kernel, mlirc.kind = "attention", mlirc.origin = ["encoder.block.*.layer.*.SelfAttention"]} {
    %0 = "mlirc.attention"(%arg0, %arg1, %arg2, %arg3) {causal = false, layouts = ["bshd", "bshd", "bshd", "bshd"], scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64, window = 0 : i64} : (tensor<1x128x8x64xbf16>, tensor<1x128x8x64xbf16>, tensor<1x128x8x64xbf16>, tensor<1x8x128x128xbf16>) -> tensor<1x128x8x64xbf16>
    return %0 : tensor<1x128x8x64xbf16>
  }
}
