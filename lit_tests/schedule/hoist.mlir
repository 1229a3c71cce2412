// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// What the body of an op in a loop reads for all elements alike is read in front of the loop, once; what depends on the
// element, or on the step, stays where it is.

// CHECK-LABEL: func.func @limited
// CHECK: %[[N:.*]] = tensor.extract %arg1[%{{.*}}]
// CHECK-NEXT: %[[I:.*]] = arith.index_cast %[[N]]
// CHECK: %[[END:.*]] = arith.subi %[[I]]
// CHECK: scf.for
// CHECK: linalg.generic
// CHECK-NOT: tensor.extract %arg1
// CHECK: linalg.index 0
// CHECK: arith.cmpi slt, %{{.*}}, %[[END]]
// CHECK: tensor.extract %arg2

module attributes {transform.with_named_sequence} {
  func.func @limited(%x: tensor<64xf32>, %n: tensor<3xi64>, %table: tensor<64xf32>, %which: index) -> tensor<16xf32> {
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<16xf32>
    %start = linalg.fill ins(%zero : f32) outs(%e : tensor<16xf32>) -> tensor<16xf32>
    %r = scf.for %j = %c0 to %c64 step %c16 iter_args(%sum = %start) -> (tensor<16xf32>) {
      %s = tensor.extract_slice %x[%j] [16] [1] : tensor<64xf32> to tensor<16xf32>
      %next = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
          iterator_types = ["parallel"]} ins(%s : tensor<16xf32>) outs(%sum : tensor<16xf32>) {
      ^bb0(%in: f32, %out: f32):
        %i = linalg.index 0 : index
        %at = arith.addi %i, %j : index
        %count = tensor.extract %n[%which] : tensor<3xi64>
        %index = arith.index_cast %count : i64 to index
        %one = arith.constant 1 : index
        %end = arith.subi %index, %one : index
        %seen = arith.cmpi slt, %at, %end : index
        %other = tensor.extract %table[%at] : tensor<64xf32>
        %chosen = arith.select %seen, %in, %other : f32
        %added = arith.addf %out, %chosen : f32
        linalg.yield %added : f32
      } -> tensor<16xf32>
      scf.yield %next : tensor<16xf32>
    }
    return %r : tensor<16xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %loop = transform.structured.match ops{["scf.for"]} in %module : (!transform.any_op) -> !transform.any_op
    "schedule.hoist"(%loop) : (!transform.any_op) -> ()
    transform.yield
  }
}
