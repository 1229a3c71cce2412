module {
  func.func private @attention_2(%arg0: tensor<1x7x6x64xbf16>, %arg1: tensor<1x1500x6x64xbf16>, %arg2: tensor<1x1500x6x64xbf16>) -> tensor<1x7x6x64xbf16> attributes {mlirc.kernel, mlirc.kind = "attention", mlirc.origin = ["model.decoder.layers.*.encoder_attn"]} {
    %0 = "mlirc.attention"(%arg0, %arg1, %arg2) {causal = false, layouts = ["bshd", "bshd", "bshd", "bshd"], scale = 1.000000e+00 : f64, softcap = 0.000000e+00 : f64, window = 0 : i64} : (tensor<1x7x6x64xbf16>, tensor<1x1500x6x64xbf16>, tensor<1x1500x6x64xbf16>) -> tensor<1x7x6x64xbf16>
    return %0 : tensor<1x7x6x64xbf16>
  }
}
