// RUN: %mlirc-opt %s --script 'cached_attention:parts=1' | %filecheck %s
// RUN: %mlirc-opt %s --script auto | %filecheck %s --check-prefix=AUTO
// RUN: %mlirc-opt %s --script 'cached_attention:parts=1,block_kv=8,pack=false,split=false,stages=3' | %filecheck %s --check-prefix=KNOBS
// RUN: %mlirc-opt %s --script 'cached_attention:parts=3' | %filecheck %s --check-prefix=PARTS
// RUN: %mlirc-opt %s --script 'cached_attention:parts=3,combine=launch' | %filecheck %s --check-prefix=LAUNCH
// RUN: %mlirc-opt %s --script 'cached_attention:parts=2,combine=cluster,teams=2' | %filecheck %s --check-prefix=CLUSTER
// RUN: %mlirc-opt %s --script 'cached_attention:parts=1,teams=3' | %filecheck %s --check-prefix=TEAMS
// RUN: %mlirc-opt %s --script 'cached_attention:parts=1' --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU

// The steps that all rows see go first, without tests and with whole tiles.
// CHECK-LABEL: func.func private @attention_0
// CHECK-SAME: mlirc.warps = 1 : i32
// CHECK: scf.forall {{.*}} in (2, 2, 1)
// CHECK: tensor.extract %arg4
// CHECK: scf.for {{.*}} step %c16
// CHECK: tensor.extract_slice %arg1[{{.*}}] [1, 1, 16, 64]
// CHECK: mlirc.mma = "mma"
// CHECK-SAME: mlirc.warp_grid = array<i64: 1, 1>
// CHECK-NOT: arith.cmpi
// CHECK: mlirc.stages = 2 : i32
// CHECK: scf.for {{.*}} step %c16
// CHECK: arith.cmpi sle
// AUTO: scf.forall {{.*}} in (2, 2, 1)
// AUTO: scf.forall {{.*}} in (2)
// AUTO: mlirc.teams = 2 : i32
// KNOBS: scf.forall {{.*}} in (2, 4, 1)
// KNOBS: scf.for {{.*}} step %c8
// KNOBS: mlirc.stages = 3 : i32
// KNOBS-NOT: = scf.for %
// PARTS: scf.forall {{.*}} in (2, 2, 1, 3)
// A part has one step at most: its page is looked up in front, and its queries are copied with its keys.
// PARTS: %[[PAGE:.*]] = tensor.extract %arg3
// PARTS: %[[ONLY:.*]] = arith.addi %[[LOWER:.*]], %c48
// PARTS: %[[END:.*]] = arith.minsi %{{.*}}, %[[ONLY]]
// PARTS: scf.for {{.*}} = %[[LOWER]] to %[[END]] step %c48
// PARTS: tensor.extract_slice %expanded
// PARTS-NOT: tensor.extract %
// PARTS-NOT: = scf.for %
// PARTS: scf.forall {{.*}} in (2, 2, 1, {{.*}})
// PARTS: math.exp2
// PARTS: mlirc.last_block = 4 : i32
// LAUNCH: scf.forall {{.*}} in (2, 2, 1, 3)
// LAUNCH-NOT: mlirc.last_block
// CLUSTER: scf.forall {{.*}} in (2, 2, 1)
// CLUSTER: scf.forall {{.*}} in (2)
// CLUSTER: scf.forall {{.*}} in (2)
// CLUSTER: scf.for {{.*}} step %c64
// CLUSTER: mlirc.teams = 2 : i32
// CLUSTER: scf.forall {{.*}} in (2)
// TEAMS: scf.forall {{.*}} in (2, 2, 1)
// TEAMS: scf.forall {{.*}} in (3)
// TEAMS: mlirc.teams = 3 : i32
// TEAMS-NOT: scf.forall {{.*}} in (

// The page of a step that is copied ahead is looked up ahead, too.
// GPU: gpu.func @attention_0
// GPU: scf.for
// GPU: memref.load {{.*}} : memref<2x3xi64>
// GPU: nvvm.cp.async
// GPU: nvgpu.mma.sync
func.func private @attention_0(%q: tensor<2x4x1x64xbf16>, %k: tensor<7x2x16x64xbf16>, %v: tensor<7x2x16x64xbf16>,
    %t: tensor<2x3xi64>, %n: tensor<2xi64>) -> tensor<2x4x1x64xbf16>
    attributes {mlirc.kernel, mlirc.kind = "attention", mlirc.origin = []} {
  %o = "mlirc.cached_attention"(%q, %k, %v, %t, %n) {scale = 0.125 : f64, window = 0 : i64, softcap = 0.0 : f64,
      layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
      : (tensor<2x4x1x64xbf16>, tensor<7x2x16x64xbf16>, tensor<7x2x16x64xbf16>, tensor<2x3xi64>, tensor<2xi64>)
      -> tensor<2x4x1x64xbf16>
  return %o : tensor<2x4x1x64xbf16>
}
