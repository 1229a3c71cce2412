// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script 'sort:way=radix' | %filecheck %s --check-prefix=KNOBS

// Short rows are sorted by a network, few elements of long ones are selected, and long rows are sorted by their digits.

// CHECK-LABEL: func.func private @sort_0
// CHECK-SAME: mlirc.lowering = "sort"
// CHECK-SAME: mlirc.way = "network"
// CHECK-LABEL: func.func private @sort_1
// CHECK-SAME: mlirc.warps = 32 : i32
// CHECK-SAME: mlirc.way = "select"
// CHECK-LABEL: func.func private @sort_2
// CHECK-SAME: mlirc.way = "radix"
// KNOBS-COUNT-3: mlirc.way = "radix"

func.func private @sort_0(%x: tensor<7x64xf32>) -> (tensor<7x8xf32>, tensor<7x8xi64>)
    attributes {mlirc.kernel, mlirc.kind = "sort"} {
  %r:2 = "mlirc.sort"(%x) {descending = true} : (tensor<7x64xf32>) -> (tensor<7x8xf32>, tensor<7x8xi64>)
  return %r#0, %r#1 : tensor<7x8xf32>, tensor<7x8xi64>
}
func.func private @sort_1(%x: tensor<7x32000xbf16>) -> (tensor<7x50xbf16>, tensor<7x50xi64>)
    attributes {mlirc.kernel, mlirc.kind = "sort"} {
  %r:2 = "mlirc.sort"(%x) {descending = true} : (tensor<7x32000xbf16>) -> (tensor<7x50xbf16>, tensor<7x50xi64>)
  return %r#0, %r#1 : tensor<7x50xbf16>, tensor<7x50xi64>
}
func.func private @sort_2(%x: tensor<7x32000xi64>) -> (tensor<7x32000xi64>, tensor<7x32000xi64>)
    attributes {mlirc.kernel, mlirc.kind = "sort"} {
  %r:2 = "mlirc.sort"(%x) {descending = false} : (tensor<7x32000xi64>) -> (tensor<7x32000xi64>, tensor<7x32000xi64>)
  return %r#0, %r#1 : tensor<7x32000xi64>, tensor<7x32000xi64>
}
