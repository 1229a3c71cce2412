// RUN: %mlirc-opt %s --script stencil:band=2 | %filecheck %s --check-prefix=TILES
// RUN: %mlirc-opt %s --script stencil:band=2 --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// Windows of one row and two columns, each channel by itself: of a block 2 rows of 8 columns, both in a lane's registers,
// and 8 channels, two for each of 4 warps.
// TILES-LABEL: func.func private @elementwise_0
// TILES-SAME: mlirc.min_blocks = 4 : i32
// TILES-SAME: mlirc.warps = 4 : i32
// TILES: scf.forall
// TILES: linalg.generic
// TILES-SAME: mlirc.band = 2 : i32
// TILES: mlirc.store = "rows"

// 16 bytes of a pixel; while they come, weights of two channels, and zeros in their stead beside the band.
// CHECK-LABEL: gpu.func @elementwise_0
// CHECK: vector.load {{.*}} : memref<4x17x8xbf16>, vector<8xbf16>
// CHECK: vector.load {{.*}} : memref<2x8xbf16>, vector<2xbf16>
// CHECK: arith.select {{.*}} : i32

// They become four words of two channels each.
// CHECK-COUNT-4: vector.store {{.*}} #gpu.address_space<workgroup>>, vector<2xbf16>
// CHECK: gpu.barrier

// Four pixels of two channels at once: both are multiplied. Nothing else than finite numbers stays as it is.
// CHECK: vector.load {{.*}} #gpu.address_space<workgroup>>, vector<8xbf16>
// CHECK-COUNT-2: nvgpu.mma.sync({{.*}}) {mmaShape = [16, 8, 16]}
// CHECK: nvvm.vote.sync any
// CHECK: scf.for
// CHECK: arith.addf

// Results leave as whole chunks.
// CHECK: vector.store {{.*}} #gpu.address_space<workgroup>>, vector<4xbf16>
// CHECK: gpu.barrier
// CHECK: vector.store {{.*}} : memref<4x16x8xbf16>, vector<8xbf16>

#id = affine_map<(p, q, c) -> (p, q, c)>
func.func private @elementwise_0(%x: tensor<4x17x8xbf16>, %w: tensor<2x8xbf16>) -> tensor<4x16x8xbf16>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<4x16x8xbf16>
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %r = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel", "parallel"]}
      outs(%e : tensor<4x16x8xbf16>) {
  ^bb0(%o: bf16):
    %p = linalg.index 0 : index
    %q = linalg.index 1 : index
    %c = linalg.index 2 : index
    %next = arith.addi %q, %one : index
    %x0 = tensor.extract %x[%p, %q, %c] : tensor<4x17x8xbf16>
    %x1 = tensor.extract %x[%p, %next, %c] : tensor<4x17x8xbf16>
    %w0 = tensor.extract %w[%zero, %c] : tensor<2x8xbf16>
    %w1 = tensor.extract %w[%one, %c] : tensor<2x8xbf16>
    %a0 = arith.extf %x0 : bf16 to f32
    %a1 = arith.extf %x1 : bf16 to f32
    %b0 = arith.extf %w0 : bf16 to f32
    %b1 = arith.extf %w1 : bf16 to f32
    %m0 = arith.mulf %a0, %b0 : f32
    %m1 = arith.mulf %a1, %b1 : f32
    %s = arith.addf %m0, %m1 : f32
    %t = arith.truncf %s : f32 to bf16
    linalg.yield %t : bf16
  } -> tensor<4x16x8xbf16>
  return %r : tensor<4x16x8xbf16>
}
