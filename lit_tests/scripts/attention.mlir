// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script 'attention:block_kv=16,stages=1' | %filecheck %s --check-prefix=KNOBS

// CHECK-LABEL: func.func private @attention_0
// CHECK-SAME: mlirc.warps = 4 : i32
// CHECK: scf.forall {{.*}} in (1, 2, 2)
// CHECK: scf.for {{.*}} step %c64
// CHECK: mlirc.mma = "mma"
// CHECK-SAME: mlirc.warp_grid = array<i64: 4, 1>
// CHECK: mlirc.stages = 2 : i32
// KNOBS: scf.for {{.*}} step %c16
// KNOBS: mlirc.stages = 1 : i32

func.func private @attention_0(%q: tensor<1x2x128x64xf16>, %k: tensor<1x2x128x64xf16>, %v: tensor<1x2x128x64xf16>)
    -> tensor<1x2x128x64xf16> attributes {mlirc.kernel, mlirc.kind = "attention"} {
  %o = "mlirc.attention"(%q, %k, %v) {scale = 0.125 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
      layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
      : (tensor<1x2x128x64xf16>, tensor<1x2x128x64xf16>, tensor<1x2x128x64xf16>) -> tensor<1x2x128x64xf16>
  return %o : tensor<1x2x128x64xf16>
}
