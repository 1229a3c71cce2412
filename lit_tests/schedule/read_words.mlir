// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// int4 in groups of 128, whose words lie in panels of eight rows: a step of 128 columns reads 16 words of each row, from a
// slice that begins with the tile, by indices within it; and the scales that the step before has read. Rows of a tile at
// the end are as many as there are, of scales, and whole panels of words.

// CHECK-DAG: #[[PANEL:.*]] = affine_map<(d0, d1) -> (d0 floordiv 8)>
// CHECK-DAG: #[[NEXT:.*]] = affine_map<(d0, d1) -> (d1 floordiv 128 + 1, 1)>
// CHECK-LABEL: func.func @weights
// CHECK: %[[ROWS:.*]] = tensor.expand_shape %arg1 {{.*}} output_shape [17, 16, 16]
// CHECK: scf.forall
// CHECK: %[[FIRST:.*]] = tensor.extract_slice %arg2[%{{.*}}, %{{.*}}] [%{{.*}}, 1] [1, 1] : tensor<136x2xbf16>
// CHECK: scf.for %[[K:.*]] = %{{.*}} to %{{.*}} step %{{.*}} iter_args(%{{.*}} = %{{.*}}, %[[SCALES:.*]] = %[[FIRST]])
// CHECK: %[[THEN:.*]] = affine.min #[[NEXT]](%{{.*}}, %[[K]])
// CHECK: %[[LATER:.*]] = tensor.extract_slice %arg2[%{{.*}}, %[[THEN]]] [%{{.*}}, 1] [1, 1] : tensor<136x2xbf16>
// CHECK: %[[AT:.*]] = affine.apply #[[PANEL]](%{{.*}}, %[[K]])
// CHECK: %[[WORDS:.*]] = tensor.extract_slice %[[ROWS]][%[[AT]], %{{.*}}, 0] [%{{.*}}, 8, 16] [1, 1, 1]
// CHECK: linalg.generic {{.*}} ins(%[[SCALES]] : tensor<?x1xbf16>) {{.*}} {mlirc.dequantize = 4 : i64}
// CHECK-NOT: tensor.extract %arg
// CHECK: tensor.extract %[[WORDS]]
// CHECK-NOT: tensor.extract %arg
// CHECK: scf.yield %{{.*}}, %[[LATER]]

module attributes {transform.with_named_sequence} {
  func.func @weights(%arg0: tensor<24x256xbf16>, %arg1: tensor<17x256xi32>, %arg2: tensor<136x2xbf16>) -> tensor<24x136xf32> {
    %cst = arith.constant 4.096000e+03 : bf16
    %cst_0 = arith.constant -1.953130e-03 : bf16
    %c7_i32 = arith.constant 7 : i32
    %c248 = arith.constant 248 : index
    %c-4 = arith.constant -4 : index
    %c15_i32 = arith.constant 15 : i32
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %c64 = arith.constant 64 : index
    %c16 = arith.constant 16 : index
    %c128 = arith.constant 128 : index
    %c8 = arith.constant 8 : index
    %cst_1 = arith.constant 0.000000e+00 : f32
    %0 = tensor.empty() : tensor<24x136xf32>
    %1 = linalg.fill ins(%cst_1 : f32) outs(%0 : tensor<24x136xf32>) -> tensor<24x136xf32>
    %2 = tensor.empty() : tensor<136x256xbf16>
    %3 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]} outs(%2 : tensor<136x256xbf16>) attrs =  {mlirc.dequantize = 4 : i64} {
    ^bb0(%out: bf16):
      %7 = linalg.index 0 : index
      %8 = arith.divui %7, %c8 : index
      %9 = linalg.index 1 : index
      %10 = arith.divui %9, %c128 : index
      %11 = arith.muli %10, %c128 : index
      %12 = arith.remui %7, %c8 : index
      %13 = arith.muli %12, %c16 : index
      %14 = arith.addi %11, %13 : index
      %15 = arith.remui %9, %c64 : index
      %16 = arith.divui %15, %c16 : index
      %17 = arith.muli %16, %c4 : index
      %18 = arith.addi %14, %17 : index
      %19 = arith.remui %9, %c16 : index
      %20 = arith.divui %19, %c8 : index
      %21 = arith.addi %18, %20 : index
      %22 = arith.remui %9, %c128 : index
      %23 = arith.divui %22, %c64 : index
      %24 = arith.muli %23, %c2 : index
      %25 = arith.addi %21, %24 : index
      %extracted = tensor.extract %arg1[%8, %25] : tensor<17x256xi32>
      %26 = arith.divui %9, %c4 : index
      %27 = arith.remui %26, %c2 : index
      %28 = arith.muli %27, %c8 : index
      %29 = arith.index_cast %28 : index to i32
      %30 = arith.shrui %extracted, %29 : i32
      %31 = arith.remui %9, %c2 : index
      %32 = arith.muli %31, %c16 : index
      %33 = arith.index_cast %32 : index to i32
      %34 = arith.shrui %30, %33 : i32
      %35 = arith.trunci %34 : i32 to i16
      %36 = arith.divui %9, %c2 : index
      %37 = arith.remui %36, %c2 : index
      %38 = arith.muli %37, %c4 : index
      %39 = arith.index_cast %38 : index to i32
      %40 = arith.shli %c15_i32, %39 : i32
      %41 = arith.trunci %40 : i32 to i16
      %42 = arith.andi %35, %41 : i16
      %43 = arith.bitcast %42 : i16 to bf16
      %44 = arith.muli %37, %c-4 : index
      %45 = arith.addi %44, %c248 : index
      %46 = arith.index_cast %45 : index to i32
      %47 = arith.shli %46, %c7_i32 : i32
      %48 = arith.trunci %47 : i32 to i16
      %49 = arith.bitcast %48 : i16 to bf16
      %50 = arith.mulf %43, %49 : bf16
      %51 = arith.addf %50, %cst_0 : bf16
      %extracted_2 = tensor.extract %arg2[%7, %10] : tensor<136x2xbf16>
      %52 = arith.mulf %extracted_2, %cst : bf16
      %53 = arith.mulf %51, %52 : bf16
      linalg.yield %53 : bf16
    } -> tensor<136x256xbf16>
    %4 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d1, d2)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%arg0, %3 : tensor<24x256xbf16>, tensor<136x256xbf16>) outs(%1 : tensor<24x136xf32>) {
    ^bb0(%in: bf16, %in_3: bf16, %out: f32):
      %5 = arith.extf %in : bf16 to f32
      %6 = arith.extf %in_3 : bf16 to f32
      %54 = arith.mulf %5, %6 : f32
      %55 = arith.addf %out, %54 : f32
      linalg.yield %55 : f32
    } -> tensor<24x136xf32>
    return %4 : tensor<24x136xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %function = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %root = "schedule.match_root"(%function) : (!transform.any_op) -> !transform.any_op
    %forall = "schedule.tile_to_blocks"(%root) {keep = array<i64: 0, 1>, order = array<i64: 1, 0>,
        sizes = array<i64: 24, 64, 0>} : (!transform.any_op) -> !transform.any_op
    %products = "schedule.match_contractions"(%forall) : (!transform.any_op) -> !transform.any_op
    %swapped = "schedule.swap_operands"(%products) : (!transform.any_op) -> !transform.any_op
    %tiled, %loop = "schedule.tile_reduction"(%swapped) {size = 128 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    "schedule.read_words"(%forall) : (!transform.any_op) -> ()
    transform.yield
  }
}
