// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script auto --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU
// RUN: %mlirc-opt %s --script 'few_rows:block_n=16,warps=2,block_k=128' | %filecheck %s --check-prefix=LOOP

// Five rows times a weight of 40 rows: a block takes eight of them, half an instruction's, and its warps share out k.

// CHECK-LABEL: func.func private @matmul_0
// CHECK-SAME: mlirc.warps = 4 : i32
// CHECK: scf.forall (%[[I:.*]]) in (5)
// CHECK: linalg.generic {{.*}}mlirc.mma = "mma_direct"

// LOOP: scf.forall (%{{.*}}) in (3)
// LOOP: scf.for %{{.*}} = %{{.*}} to %c256{{.*}} step %c128

// Both operands come straight to the registers that multiply them; the parts of the sums go through shared memory.

// GPU-LABEL: gpu.func @matmul_0
// GPU-SAME: mma_direct 5x8x256 on 1x1 warps x 4 along k
// GPU: vector.load %{{.*}} : memref<40x256xbf16>, vector<8xbf16>
// GPU-NOT: cp.async
// GPU: nvgpu.mma.sync(%{{.*}}) {mmaShape = [16, 8, 16]} : (vector<4x2xbf16>, vector<2x2xbf16>, vector<2x2xf32>)
// GPU: memref.store {{.*}}#gpu.address_space<workgroup>

#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%x: tensor<5x256xbf16>, %w: tensor<40x256xbf16>) -> tensor<5x40xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<5x40xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<5x40xf32>) -> tensor<5x40xf32>
  %y = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<5x256xbf16>, tensor<40x256xbf16>) outs(%f : tensor<5x40xf32>) {
  ^bb0(%p: bf16, %q: bf16, %sum: f32):
    %0 = arith.extf %p : bf16 to f32
    %1 = arith.extf %q : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %sum, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<5x40xf32>
  return %y : tensor<5x40xf32>
}
