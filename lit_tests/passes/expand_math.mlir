// RUN: %mlirc-opt %s --pass mlirc-expand-math | %filecheck %s

// exp of f32 keeps one exp2; what the argument's rounding lost is multiplied back.
// CHECK-LABEL: func.func @exp
// CHECK: arith.maximumf
// CHECK: arith.minimumf
// CHECK: math.fma
// CHECK: math.exp2 {{.*}} : vector<4xf32>
// CHECK: arith.mulf
// CHECK-NOT: math.exp %
// CHECK: return
func.func @exp(%x: vector<4xf32>) -> vector<4xf32> {
  %0 = math.exp %x : vector<4xf32>
  return %0 : vector<4xf32>
}

// CHECK-LABEL: func.func @fast_exp
// CHECK: %[[SCALED:.*]] = arith.mulf
// CHECK-NEXT: %[[R:.*]] = math.exp2 %[[SCALED]] : f32
// CHECK-NEXT: return %[[R]]
func.func @fast_exp(%x: f32) -> f32 {
  %0 = math.exp %x fastmath<afn> : f32
  return %0 : f32
}

// 16-bit floats go through f32.
// CHECK-LABEL: func.func @bf16_tanh
// CHECK: arith.extf %{{.*}} : vector<8xbf16> to vector<8xf32>
// CHECK-NOT: math.tanh
// CHECK: arith.truncf %{{.*}} : vector<8xf32> to vector<8xbf16>
func.func @bf16_tanh(%x: vector<8xbf16>) -> vector<8xbf16> {
  %0 = math.tanh %x : vector<8xbf16>
  return %0 : vector<8xbf16>
}

// CHECK-LABEL: func.func @cube
// CHECK-NOT: math.
// CHECK: arith.mulf
// CHECK: arith.mulf
// CHECK-NOT: arith
// CHECK: return
func.func @cube(%x: f32) -> f32 {
  %c = arith.constant 3.0 : f32
  %0 = math.powf %x, %c : f32
  return %0 : f32
}

// What NVPTX selects itself stays.
// CHECK-LABEL: func.func @native
// CHECK: math.sqrt
// CHECK: math.floor
// CHECK: math.absf
func.func @native(%x: f32) -> f32 {
  %0 = math.sqrt %x : f32
  %1 = math.floor %0 : f32
  %2 = math.absf %1 : f32
  return %2 : f32
}

// What is allowed to be approximate flushes: one instruction for each element.
// CHECK-LABEL: func.func @flushed
// CHECK: nvvm.ex2 %arg0 {ftz = true} : f32
// CHECK-COUNT-2: nvvm.ex2 %{{.*}} {ftz = true} : f32
// CHECK: vector.from_elements
// CHECK: math.exp2 %arg0 : f32
func.func @flushed(%x: f32, %v: vector<2xf32>) -> (f32, vector<2xf32>, f32) {
  %0 = math.exp2 %x fastmath<afn> : f32
  %1 = math.exp2 %v fastmath<afn> : vector<2xf32>
  %2 = math.exp2 %x : f32
  return %0, %1, %2 : f32, vector<2xf32>, f32
}

// A step of f64 arithmetic for every 52 bits of the quotient, until each element is below its divisor.
// CHECK-LABEL: func.func @remainder
// CHECK: math.absf
// CHECK-NEXT: %[[STEP:.*]] = math.absf %{{.*}} : vector<4xf64>
// CHECK: scf.while (%[[REST:.*]] = %{{.*}}) : (vector<4xf64>) -> vector<4xf64>
// CHECK: arith.cmpf oge, %[[REST]], %[[STEP]]
// CHECK: vector.reduction <or>
// CHECK: scf.condition
// CHECK: math.trunc
// CHECK: math.fma
// CHECK: scf.yield
// CHECK: arith.truncf %{{.*}} : vector<4xf64> to vector<4xf32>
// CHECK-NOT: arith.remf
// CHECK: return
func.func @remainder(%x: vector<4xf32>, %y: vector<4xf32>) -> vector<4xf32> {
  %0 = arith.remf %x, %y : vector<4xf32>
  return %0 : vector<4xf32>
}

// CHECK-LABEL: func.func @remainder_of_rows
// CHECK: vector.shape_cast %{{.*}} : vector<2x3xi1> to vector<6xi1>
// CHECK: vector.reduction <or>, %{{.*}} : vector<6xi1> into i1
// CHECK: return
func.func @remainder_of_rows(%x: vector<2x3xf64>, %y: vector<2x3xf64>) -> vector<2x3xf64> {
  %0 = arith.remf %x, %y : vector<2x3xf64>
  return %0 : vector<2x3xf64>
}

// A large angle is reduced behind a branch; sine and cosine of one angle share its parts.
// CHECK-LABEL: func.func @angle
// CHECK: vector.reduction <or>
// CHECK: scf.if
// CHECK: arith.mului_extended
// CHECK: } else {
// CHECK-NOT: scf.if
// CHECK-NOT: math.sin
// CHECK: return
func.func @angle(%x: vector<4xf32>) -> vector<4xf32> {
  %0 = math.sin %x : vector<4xf32>
  %1 = math.cos %x : vector<4xf32>
  %2 = arith.mulf %0, %1 : vector<4xf32>
  return %2 : vector<4xf32>
}
