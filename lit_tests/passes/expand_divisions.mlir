// RUN: %mlirc-opt %s --pass mlirc-expand-divisions | %filecheck %s

// CHECK-LABEL: func.func @reciprocals
// CHECK: %[[NEAR:.*]] = arith.divf %{{.*}}, %arg0 fastmath<afn> : vector<2xf32>
// CHECK: %[[NEG:.*]] = arith.negf %arg0
// CHECK: %[[LEFT:.*]] = math.fma %[[NEG]], %[[NEAR]], %{{.*}} : vector<2xf32>
// CHECK: %[[REFINED:.*]] = math.fma %[[NEAR]], %[[LEFT]], %[[NEAR]] : vector<2xf32>
// CHECK: %[[NAN:.*]] = arith.cmpf uno, %[[REFINED]], %[[REFINED]]
// CHECK: %[[R:.*]] = arith.select %[[NAN]], %[[NEAR]], %[[REFINED]]
// CHECK: return %[[R]]
func.func @reciprocals(%x: vector<2xf32>) -> vector<2xf32> {
  %one = arith.constant dense<1.0> : vector<2xf32>
  %r = arith.divf %one, %x : vector<2xf32>
  return %r : vector<2xf32>
}

// CHECK-LABEL: func.func @quotients
// CHECK: math.absf %arg1
// CHECK: %[[SCALE:.*]] = arith.select
// CHECK: %[[SCALE:.*]] = arith.select
// CHECK: %[[Y:.*]] = arith.mulf %arg1, %[[SCALE]]
// CHECK: arith.divf %{{.*}}, %[[Y]] fastmath<afn> : f32
// CHECK: %[[SHARE:.*]] = arith.select
// CHECK: math.absf %arg0
// CHECK: %[[TINY:.*]] = arith.cmpf olt
// CHECK: %[[UP:.*]] = arith.select %[[TINY]]
// CHECK: %[[X:.*]] = arith.mulf %arg0, %[[UP]]
// CHECK: %[[DOWN:.*]] = arith.mulf %[[SCALE]]
// CHECK: %[[BACK:.*]] = arith.select %[[TINY]], %[[DOWN]], %[[SCALE]]
// CHECK: arith.mulf %[[X]], %[[SHARE]]
// CHECK-COUNT-4: math.fma
// CHECK-NOT: arith.divf
// CHECK: arith.mulf %{{.*}}, %[[BACK]]
// CHECK: return
func.func @quotients(%x: f32, %y: f32) -> f32 {
  %r = arith.divf %x, %y : f32
  return %r : f32
}

// Other types have no approximation.
// CHECK-LABEL: func.func @left
// CHECK-NOT: math.fma
// CHECK: arith.divf %arg0, %arg1 : f64
// CHECK: arith.divf %arg2, %arg2 : f16
// CHECK-NOT: math.fma
func.func @left(%x: f64, %y: f64, %z: f16) -> (f64, f16) {
  %p = arith.divf %x, %y : f64
  %q = arith.divf %z, %z : f16
  return %p, %q : f64, f16
}
