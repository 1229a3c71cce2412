#id = affine_map<(b, u) -> (b, u)>
func.func @main(%h: tensor<2x3xf32>, %x: tensor<5x2x3xf32>, %w: tensor<3x3xf32>, %v: tensor<3x3xf32>)
    -> (tensor<2x3xf32>, tensor<5x2x3xf32>, tensor<5x2x3xf32>) {
  %r:2 = call @loop_0(%h, %x, %w) : (tensor<2x3xf32>, tensor<5x2x3xf32>, tensor<3x3xf32>) -> (tensor<2x3xf32>, tensor<5x2x3xf32>)
  %q:2 = call @loop_0(%h, %x, %v) : (tensor<2x3xf32>, tensor<5x2x3xf32>, tensor<3x3xf32>) -> (tensor<2x3xf32>, tensor<5x2x3xf32>)
  %s:2 = call @loop_0(%r#0, %r#1, %w) : (tensor<2x3xf32>, tensor<5x2x3xf32>, tensor<3x3xf32>) -> (tensor<2x3xf32>, tensor<5x2x3xf32>)
  return %s#0, %s#1, %q#1 : tensor<2x3xf32>, tensor<5x2x3xf32>, tensor<5x2x3xf32>
}

func.func private @step_0(%h: tensor<2x3xf32>, %x: tensor<2x3xf32>, %w: tensor<3x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    attributes {mlirc.step} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2x3xf32>) -> tensor<2x3xf32>
  %d = linalg.matmul ins(%h, %w : tensor<2x3xf32>, tensor<3x3xf32>) outs(%f : tensor<2x3xf32>) -> tensor<2x3xf32>
  %n = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %d : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.addf %a, %b : f32
    %t = math.tanh %s : f32
    linalg.yield %t : f32
  } -> tensor<2x3xf32>
  return %n, %n : tensor<2x3xf32>, tensor<2x3xf32>
}

func.func private @loop_0(%h0: tensor<2x3xf32>, %xs: tensor<5x2x3xf32>, %w: tensor<3x3xf32>)
    -> (tensor<2x3xf32>, tensor<5x2x3xf32>) attributes {mlirc.loop} {
  %first = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant 5 : index
  %last = arith.constant 4 : index
  %e = tensor.empty() : tensor<5x2x3xf32>
  %r:2 = scf.for %t = %first to %count step %one iter_args(%h = %h0, %y = %e) -> (tensor<2x3xf32>, tensor<5x2x3xf32>) {
    %i = arith.subi %last, %t : index
    %x = tensor.extract_slice %xs[%i, 0, 0] [1, 2, 3] [1, 1, 1] : tensor<5x2x3xf32> to tensor<2x3xf32>
    %n:2 = func.call @step_0(%h, %x, %w) : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<3x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    %z = tensor.insert_slice %n#1 into %y[%i, 0, 0] [1, 2, 3] [1, 1, 1] : tensor<2x3xf32> into tensor<5x2x3xf32>
    scf.yield %n#0, %z : tensor<2x3xf32>, tensor<5x2x3xf32>
  }
  return %r#0, %r#1 : tensor<2x3xf32>, tensor<5x2x3xf32>
}
