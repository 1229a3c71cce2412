// RUN: %mlirc-opt %s --pass mlirc-group-kernels | %filecheck %s

// Eight parts at most in one kernel: nine are a group of eight, which two concatenations share, and one more. What is read of
// eight or fewer joins the kernel that reads it.
// CHECK-LABEL: func.func @main
// CHECK: %[[GROUP:.*]] = tensor.concat dim(0) %arg0, %arg0, %arg0, %arg0, %arg0, %arg0, %arg0, %arg0 {mlirc.kernels = array<i64: [[G:.*]]>, mlirc.root = [[G]] : i64}
// CHECK: tensor.concat dim(0) %[[GROUP]], %arg1 {mlirc.kernels = array<i64: [[N:.*]]>}
// CHECK: linalg.generic {{.*}}mlirc.kernels = array<i64: [[N]]>, mlirc.root = [[N]] : i64
// CHECK: tensor.concat dim(0) %[[GROUP]], %arg1, %arg1 {mlirc.kernels = array<i64: [[T:.*]]>}
// CHECK: linalg.generic {{.*}}mlirc.kernels = array<i64: [[T]]>, mlirc.root = [[T]] : i64
#id = affine_map<(i) -> (i)>
func.func @main(%x: tensor<3xf32>, %y: tensor<5xf32>) -> (tensor<29xf32>, tensor<34xf32>) {
  %a = tensor.concat dim(0) %x, %x, %x, %x, %x, %x, %x, %x, %y
      : (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<5xf32>) -> tensor<29xf32>
  %ea = tensor.empty() : tensor<29xf32>
  %ra = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%a : tensor<29xf32>) outs(%ea : tensor<29xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = arith.addf %p, %p : f32
    linalg.yield %s : f32
  } -> tensor<29xf32>
  %b = tensor.concat dim(0) %x, %x, %x, %x, %x, %x, %x, %x, %y, %y
      : (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<5xf32>, tensor<5xf32>) -> tensor<34xf32>
  %eb = tensor.empty() : tensor<34xf32>
  %rb = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]} ins(%b : tensor<34xf32>) outs(%eb : tensor<34xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = arith.mulf %p, %p : f32
    linalg.yield %s : f32
  } -> tensor<34xf32>
  return %ra, %rb : tensor<29xf32>, tensor<34xf32>
}
