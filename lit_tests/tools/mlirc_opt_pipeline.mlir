// RUN: %mlirc-opt %s --pipeline 'cse,func.func(canonicalize)' | %filecheck %s
// RUN: not %mlirc-opt %s --pass mlirc-no-such-pass 2>&1 | %filecheck %s --check-prefix=UNKNOWN
// RUN: not %mlirc-opt %s --pipeline 'no-such-pass' 2>&1 | %filecheck %s --check-prefix=PIPELINE
// RUN: not %mlirc-opt %s --target sm_10 2>&1 | %filecheck %s --check-prefix=TARGET
// RUN: not %mlirc-opt no_such_file.mlir 2>&1 | %filecheck %s --check-prefix=MISSING

// UNKNOWN: error: unknown pass 'mlirc-no-such-pass'
// PIPELINE: error: pass pipeline 'no-such-pass': {{.*}}no-such-pass
// TARGET: error: unknown target 'sm_10': choose one of sm_80
// MISSING: error: no_such_file.mlir: cannot be read: No such file or directory

// CHECK-LABEL: func.func @equal_sums_are_computed_once
// CHECK-COUNT-1: arith.addi
// CHECK-NOT: arith.addi
// CHECK: return
func.func @equal_sums_are_computed_once(%a: i32, %b: i32) -> (i32, i32) {
  %0 = arith.addi %a, %b : i32
  %1 = arith.addi %a, %b : i32
  return %0, %1 : i32, i32
}

// -----

// CHECK: // -----
// CHECK-LABEL: func.func @the_second_module
func.func @the_second_module() {
  return
}
