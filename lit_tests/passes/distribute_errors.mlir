// RUN: not %mlirc-opt %s --pass mlirc-distribute 2>&1 | %filecheck %s

// CHECK: error: {{.*}}kernel k: a slice with a stride other than 1; use the generic script
func.func @k(%x: tensor<8xf32>) -> tensor<4xf32> attributes {mlirc.kernel} {
  %e = tensor.empty() : tensor<4xf32>
  %r = scf.forall (%i) in (1) shared_outs(%o = %e) -> (tensor<4xf32>) {
    %t = tensor.extract_slice %x[0] [4] [2] : tensor<8xf32> to tensor<4xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %t into %o[0] [4] [1] : tensor<4xf32> into tensor<4xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<4xf32>
}
