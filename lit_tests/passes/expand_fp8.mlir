// RUN: %mlirc-opt %s --pass mlirc-expand-fp8 | %filecheck %s

// Codes are shifted into place, and scaled by the difference of the exponents' biases.
// CHECK-LABEL: func.func @widen
// CHECK: %[[CODE:.*]] = arith.bitcast %{{.*}} : vector<4xf8E4M3FN> to vector<4xi8>
// CHECK: arith.extui %[[CODE]] : vector<4xi8> to vector<4xi32>
// CHECK: arith.mulf {{.*}} : vector<4xf32>
// CHECK-NOT: arith.extf
// CHECK: return
func.func @widen(%x: vector<4xf8E4M3FN>) -> vector<4xf32> {
  %0 = arith.extf %x : vector<4xf8E4M3FN> to vector<4xf32>
  return %0 : vector<4xf32>
}

// Subnormal numbers are rounded by an addition, the others by integers.
// CHECK-LABEL: func.func @narrow
// CHECK: arith.addf {{.*}} : f32
// CHECK: %[[CODE:.*]] = arith.trunci %{{.*}} : i32 to i8
// CHECK: %[[R:.*]] = arith.bitcast %[[CODE]] : i8 to f8E5M2
// CHECK: return %[[R]]
func.func @narrow(%x: f32) -> f8E5M2 {
  %0 = arith.truncf %x : f32 to f8E5M2
  return %0 : f8E5M2
}

// 16-bit floats go through f32, which has the values of both.
// CHECK-LABEL: func.func @halves
// CHECK: arith.truncf %{{.*}} : f32 to bf16
// CHECK: arith.extf %{{.*}} : f16 to f32
func.func @halves(%x: f8E4M3FN, %y: f16) -> (bf16, f8E4M3FN) {
  %0 = arith.extf %x : f8E4M3FN to bf16
  %1 = arith.truncf %y : f16 to f8E4M3FN
  return %0, %1 : bf16, f8E4M3FN
}
