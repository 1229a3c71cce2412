// RUN: %mlirc-opt %s --pass mlirc-prefetch-weights | %filecheck %s
// RUN: %mlirc-opt %s --pass 'mlirc-prefetch-weights{bytes=300000}' | %filecheck %s --check-prefix=FEW

// The weights of the products behind a bundle, up to the next one, become its arguments: not what is computed, not a
// table that is gathered from. Of few bytes, those of the last product that has any share what is left.
// CHECK-LABEL: func.func @main
// CHECK: %[[B:.*]] = call @bundle_0_0(%arg0, %arg1, %arg2)
// CHECK: call @matmul_0(%[[B]], %arg1)
// CHECK: call @bundle_0_1(%{{.*}}, %arg1)
// CHECK-NOT: func.func private @bundle_0(
// CHECK-DAG: func.func private @bundle_0_0(%{{.*}}: tensor<512xbf16>, %{{.*}}: tensor<512x512xbf16>, %{{.*}}: tensor<256x512xbf16>){{.*}}mlirc.prefetch = array<i64: 1, 524288, 2, 262144>
// CHECK-DAG: func.func private @bundle_0_1({{.*}}mlirc.prefetch = array<i64: 1, 524288>

// FEW-DAG: func.func private @bundle_0_0(%{{.*}}: tensor<512xbf16>, %{{.*}}: tensor<512x512xbf16>){{.*}}mlirc.prefetch = array<i64: 1, 299904>
func.func @main(%x: tensor<512xbf16>, %w: tensor<512x512xbf16> {mlirc.kind = "weight"},
    %v: tensor<256x512xbf16> {mlirc.kind = "constant"}, %table: tensor<900x512xbf16> {mlirc.kind = "weight"})
    -> tensor<256xbf16> {
  %0 = call @bundle_0(%x) : (tensor<512xbf16>) -> tensor<512xbf16>
  %1 = call @matmul_0(%0, %w) : (tensor<512xbf16>, tensor<512x512xbf16>) -> tensor<512xbf16>
  %2 = call @matmul_1(%1, %v) : (tensor<512xbf16>, tensor<256x512xbf16>) -> tensor<256xbf16>
  %3 = call @bundle_0(%1) : (tensor<512xbf16>) -> tensor<512xbf16>
  %4 = call @matmul_0(%3, %w) : (tensor<512xbf16>, tensor<512x512xbf16>) -> tensor<512xbf16>
  %5 = call @gather_0(%4, %table) : (tensor<512xbf16>, tensor<900x512xbf16>) -> tensor<512xbf16>
  return %2 : tensor<256xbf16>
}
func.func private @bundle_0(%x: tensor<512xbf16>) -> tensor<512xbf16>
    attributes {mlirc.kernel, mlirc.kind = "bundle", mlirc.origin = ["a"]} {
  %e = tensor.empty() : tensor<512xbf16>
  %g = linalg.abs ins(%x : tensor<512xbf16>) outs(%e : tensor<512xbf16>) -> tensor<512xbf16>
  return %g : tensor<512xbf16>
}
func.func private @matmul_0(%x: tensor<512xbf16>, %w: tensor<512x512xbf16>) -> tensor<512xbf16>
    attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["b"]} {
  return %x : tensor<512xbf16>
}
func.func private @matmul_1(%x: tensor<512xbf16>, %w: tensor<256x512xbf16>) -> tensor<256xbf16>
    attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["b"]} {
  %e = tensor.empty() : tensor<256xbf16>
  return %e : tensor<256xbf16>
}
func.func private @gather_0(%x: tensor<512xbf16>, %t: tensor<900x512xbf16>) -> tensor<512xbf16>
    attributes {mlirc.kernel, mlirc.kind = "gather", mlirc.origin = ["c"]} {
  return %x : tensor<512xbf16>
}
