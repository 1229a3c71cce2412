// RUN: %mlirc-opt %s --script 'matmul:block_m=32,block_n=8,block_k=16,warps_m=1,warps_n=1,stages=1' --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// The first factor runs along the result's columns: it is the product's right operand, so that registers are numbered
// as the result's rows are. A lane holds two rows of eight (%arg1) by four columns of 32 (%arg0).
// CHECK-DAG: %[[B:.*]] = memref.view {{.*}} to memref<1x8x16xf32, #gpu.address_space<workgroup>>
// CHECK-DAG: %[[A:.*]] = memref.view {{.*}} to memref<1x32x16xf32, #gpu.address_space<workgroup>>
// CHECK: %[[ROW:.*]] = vector.load %[[B]]
// CHECK: vector.load %[[B]]
// CHECK-COUNT-4: vector.load %[[A]]
// CHECK: %[[X:.*]] = vector.extract %[[ROW]][0]
// CHECK: vector.broadcast %[[X]] : f32 to vector<4xf32>
// CHECK: math.fma {{.*}} : vector<4xf32>
func.func private @matmul_0(%a: tensor<64x16xf32>, %b: tensor<24x16xf32>) -> tensor<24x64xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<24x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<24x64xf32>) -> tensor<24x64xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                                        affine_map<(m, n, k) -> (n, m)>],
                       iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a, %b : tensor<64x16xf32>, tensor<24x16xf32>) outs(%f : tensor<24x64xf32>) {
  ^bb0(%x: f32, %y: f32, %sum: f32):
    %product = arith.mulf %x, %y : f32
    %total = arith.addf %sum, %product : f32
    linalg.yield %total : f32
  } -> tensor<24x64xf32>
  return %r : tensor<24x64xf32>
}
