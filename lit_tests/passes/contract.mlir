// RUN: %mlirc-opt %s --pass mlirc-contract | %filecheck %s

// CHECK-LABEL: func.func @sum
// CHECK-NEXT: %[[R:.*]] = math.fma %arg0, %arg1, %arg2 : vector<4xf32>
// CHECK-NEXT: return %[[R]]
func.func @sum(%a: vector<4xf32>, %b: vector<4xf32>, %c: vector<4xf32>) -> vector<4xf32> {
  %m = arith.mulf %a, %b : vector<4xf32>
  %r = arith.addf %c, %m : vector<4xf32>
  return %r : vector<4xf32>
}

// CHECK-LABEL: func.func @differences
// CHECK: %[[N:.*]] = arith.negf %arg2
// CHECK: math.fma %arg0, %arg1, %[[N]] : bf16
// CHECK: %[[C:.*]] = arith.constant -3.000000e+00 : bf16
// CHECK: math.fma %arg0, %[[C]], %arg2 : bf16
// CHECK: %[[A:.*]] = arith.negf %arg0
// CHECK: math.fma %[[A]], %arg1, %arg2 : bf16
// CHECK-NOT: arith.mulf
// CHECK-LABEL: func.func @left
func.func @differences(%a: bf16, %b: bf16, %c: bf16) -> (bf16, bf16, bf16) {
  %three = arith.constant 3.0 : bf16
  %m = arith.mulf %a, %b : bf16
  %r = arith.subf %m, %c : bf16
  %n = arith.mulf %a, %three : bf16
  %s = arith.subf %c, %n : bf16
  %o = arith.mulf %a, %b : bf16
  %p = arith.negf %o : bf16
  %q = arith.addf %p, %c : bf16
  return %r, %s, %q : bf16, bf16, bf16
}

// One of two products; one that is used twice, or whose operations say otherwise, is left.
// CHECK: %[[M:.*]] = arith.mulf %arg2, %arg1
// CHECK: math.fma %arg0, %arg1, %[[M]] : f64
// CHECK: %[[T:.*]] = arith.mulf %arg0, %arg2
// CHECK: arith.subf %[[T]], %[[T]]
// CHECK: arith.addf
func.func @left(%a: f64, %b: f64, %c: f64) -> (f64, f64, f64) {
  %m = arith.mulf %a, %b : f64
  %n = arith.mulf %c, %b : f64
  %r = arith.addf %m, %n : f64
  %t = arith.mulf %a, %c : f64
  %s = arith.subf %t, %t : f64
  %u = arith.mulf %b, %b fastmath<nnan> : f64
  %v = arith.addf %u, %c : f64
  return %r, %s, %v : f64, f64, f64
}

// A row's sum of squares, in registers; and a vector that is put together from products.
// CHECK-LABEL: func.func @elements
// CHECK: %[[X0:.*]] = vector.extract %arg0[0]
// CHECK: %[[Y0:.*]] = vector.extract %arg0[0]
// CHECK: math.fma %[[X0]], %[[Y0]], %{{.*}} : f32
// CHECK: %[[P:.*]] = vector.from_elements %arg1, %arg2
// CHECK: %[[Q:.*]] = vector.broadcast %arg2
// CHECK: math.fma %[[P]], %[[Q]], %arg0 : vector<2xf32>
// CHECK-NOT: arith.addf
func.func @elements(%x: vector<2xf32>, %a: f32, %b: f32) -> (f32, vector<2xf32>) {
  %m = arith.mulf %x, %x : vector<2xf32>
  %0 = vector.extract %m[0] : f32 from vector<2xf32>
  %1 = vector.extract %m[1] : f32 from vector<2xf32>
  %s = arith.addf %0, %1 : f32
  %p = arith.mulf %a, %b : f32
  %q = arith.mulf %b, %b : f32
  %v = vector.from_elements %p, %q : vector<2xf32>
  %r = arith.addf %v, %x : vector<2xf32>
  return %s, %r : f32, vector<2xf32>
}
