// RUN: %mlirc-opt %s --script auto | %filecheck %s

// A map that reads neighbours along its last dimension but one, in whole rows along the last: 8 of bf16 per thread, and
// strips of 7 neighbours, 8 rows of 2 strips for the threads of a block.

// CHECK-LABEL: func.func private @elementwise_0
// CHECK: scf.forall (%{{.*}}, %{{.*}}) in (1024, 8)
// CHECK: linalg.generic
// CHECK-SAME: mlirc.strip = 7 : i32
// CHECK-SAME: mlirc.vector = 8 : i32

// Of neighbours along another dimension threads have nothing in common.

// CHECK-LABEL: func.func private @elementwise_1
// CHECK-NOT: mlirc.strip
// CHECK: return

#id = affine_map<(a, b, c) -> (a, b, c)>
func.func private @elementwise_0(%x: tensor<1024x64x14x64xbf16>) -> tensor<1024x64x14x64xbf16>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<1024x64x14x64xbf16>
  %last = arith.constant 13 : index
  %one = arith.constant 1 : index
  %r = linalg.generic {indexing_maps = [affine_map<(a, b, c, d) -> (a, b, c, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%e : tensor<1024x64x14x64xbf16>) {
  ^bb0(%o: bf16):
    %a = linalg.index 0 : index
    %b = linalg.index 1 : index
    %c = linalg.index 2 : index
    %d = linalg.index 3 : index
    %next = arith.addi %c, %one : index
    %right = arith.minsi %next, %last : index
    %v = tensor.extract %x[%a, %b, %c, %d] : tensor<1024x64x14x64xbf16>
    %w = tensor.extract %x[%a, %b, %right, %d] : tensor<1024x64x14x64xbf16>
    %m = arith.maximumf %v, %w : bf16
    linalg.yield %m : bf16
  } -> tensor<1024x64x14x64xbf16>
  return %r : tensor<1024x64x14x64xbf16>
}

func.func private @elementwise_1(%x: tensor<64x14x64xbf16>) -> tensor<64x14x64xbf16>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<64x14x64xbf16>
  %last = arith.constant 63 : index
  %r = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel", "parallel", "parallel"]} outs(%e : tensor<64x14x64xbf16>) {
  ^bb0(%o: bf16):
    %a = linalg.index 0 : index
    %b = linalg.index 1 : index
    %c = linalg.index 2 : index
    %up = arith.subi %last, %a : index
    %left = arith.subi %last, %c : index
    %v = tensor.extract %x[%up, %b, %c] : tensor<64x14x64xbf16>
    %w = tensor.extract %x[%a, %b, %left] : tensor<64x14x64xbf16>
    %m = arith.maximumf %v, %w : bf16
    linalg.yield %m : bf16
  } -> tensor<64x14x64xbf16>
  return %r : tensor<64x14x64xbf16>
}
