// RUN: %mlirc-opt %s --target sm_80 --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: sed -f %S/inputs/bytes_as_floats.sed %s | %mlirc-opt - --target sm_89 --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=FLOAT
// RUN: sed -f %S/inputs/bytes_as_floats.sed %s | not %mlirc-opt - --target sm_86 --pass mlirc-async --pass mlirc-distribute 2>&1 | %filecheck %s --check-prefix=OLD

// A's rows run along k: its pairs of bytes are what ldmatrix moves. B's do not: pairs of two rows come transposed, and
// prmt makes of two registers four bytes along k of an even column, and of an odd one, of which a thread has four
// neighbours then.
// CHECK-LABEL: gpu.func @product
// CHECK-SAME: mlirc.products = ["mma8 32x32x64 on 1x2 warps; sums (r4 l8:4) x (w2 l4 r4): 16 registers; A i8 in 2 slots of 32x64, rows swizzled over 64 bytes; B i8 in 2 slots of 64x32, rows swizzled over 32 bytes"]
// CHECK-DAG: %[[EVEN:.*]] = arith.select %[[ORDER:.*]], %c25632_i32, %c8292_i32
// CHECK-DAG: %[[ODD:.*]] = arith.select %[[ORDER]], %c30001_i32, %c12661_i32
// CHECK: scf.for
// CHECK: nvgpu.ldmatrix {{.*}} {numTiles = 4 : i32, transpose = false} : memref<2x32x32xi16, #gpu.address_space<workgroup>> -> vector<4x2xi16>
// CHECK: nvgpu.ldmatrix {{.*}} {numTiles = 4 : i32, transpose = true} : memref<2x64x16xi16, #gpu.address_space<workgroup>> -> vector<4x2xi16>
// CHECK-COUNT-2: nvvm.prmt <default> %[[EVEN]]
// CHECK-COUNT-2: nvvm.prmt <default> %[[ODD]]
// CHECK: nvvm.mma.sync {{.*}}intOverflowBehavior = #nvvm.mma_int_overflow<wrapped>{{.*}}multiplicandAPtxType = #nvvm.mma_type<u8>, multiplicandBPtxType = #nvvm.mma_type<s8>, shape = #nvvm.shape<m = 16, n = 8, k = 32>
// CHECK-NOT: arith.addi {{.*}} vector<2x2xi32>
// CHECK: scf.yield

// The sums of a slice are made from zero, and added to the running ones in f32.
// FLOAT-LABEL: gpu.func @product
// FLOAT: scf.for
// FLOAT: nvvm.mma.sync {{.*}}multiplicandAPtxType = #nvvm.mma_type<e5m2>, multiplicandBPtxType = #nvvm.mma_type<e5m2>
// FLOAT: arith.addf {{.*}} : vector<2x2xf32>
// FLOAT: scf.yield

// OLD: mlirc.mma = mma8: sm_86 has no mma8 of 8-bit floats: use fma

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @product(%a: tensor<32x256xi8>, %b: tensor<256x32xi8>) -> tensor<32x32xi32>
    attributes {mlirc.kernel, mlirc.warps = 2 : i64} {
  %zero = arith.constant 0 : i32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c256 = arith.constant 256 : index
  %e = tensor.empty() : tensor<32x32xi32>
  %r = scf.forall (%i) in (1) shared_outs(%o = %e) -> (tensor<32x32xi32>) {
    %ce = tensor.empty() : tensor<32x32xi32>
    %cf = linalg.fill ins(%zero : i32) outs(%ce : tensor<32x32xi32>) -> tensor<32x32xi32>
    %p = scf.for %k = %c0 to %c256 step %c64 iter_args(%s = %cf) -> (tensor<32x32xi32>) {
      %x = tensor.extract_slice %a[0, %k] [32, 64] [1, 1] : tensor<32x256xi8> to tensor<32x64xi8>
      %y = tensor.extract_slice %b[%k, 0] [64, 32] [1, 1] : tensor<256x32xi8> to tensor<64x32xi8>
      %g = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%x, %y : tensor<32x64xi8>, tensor<64x32xi8>) outs(%s : tensor<32x32xi32>)
          attrs = {mlirc.mma = "mma8", mlirc.warp_grid = array<i64: 1, 2>} {
      ^bb0(%u: i8, %v: i8, %w: i32):
        %ue = arith.extui %u : i8 to i32
        %ve = arith.extsi %v : i8 to i32
        %uv = arith.muli %ue, %ve : i32
        %z = arith.addi %w, %uv : i32
        linalg.yield %z : i32
      } -> tensor<32x32xi32>
      scf.yield %g : tensor<32x32xi32>
    } {mlirc.stages = 2 : i64}
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %p into %o[0, 0] [32, 32] [1, 1] : tensor<32x32xi32> into tensor<32x32xi32>
    }
  }
  return %r : tensor<32x32xi32>
}
