// RUN: %mlirc-opt %s --pass mlirc-scalar-arguments | %filecheck %s

// The host loads n and gives it; m, of which the kernel makes a view, stays a memref; and so does what is not listed.
// CHECK: gpu.func @k_0(%[[X:.*]]: memref<4xf32>, %[[N:.*]]: f32, %{{.*}}: memref<1xf32>, %{{.*}}: memref<4xf32>, %{{.*}}: memref<f32>)
// CHECK: memref.load %[[X]]
// CHECK: arith.mulf %{{.*}}, %[[N]]
// CHECK: func.func @k(%{{.*}}: memref<4xf32>, %[[ARG:.*]]: memref<f32>, %{{.*}}: memref<1xf32>, %[[O:.*]]: memref<f32>
// CHECK: %[[V:.*]] = memref.load %[[ARG]][] : memref<f32>
// CHECK: gpu.launch_func @k_gpu::@k_0 {{.*}} %[[V]] : f32, %{{.*}} : memref<1xf32>, %{{.*}} : memref<4xf32>, %[[O]] : memref<f32>)
module attributes {gpu.container_module} {
  gpu.module @k_gpu {
    gpu.func @k_0(%x: memref<4xf32>, %n: memref<f32>, %m: memref<1xf32>, %y: memref<4xf32>, %o: memref<f32>) kernel {
      %i = gpu.thread_id x
      %c0 = arith.constant 0 : index
      %a = memref.load %x[%i] : memref<4xf32>
      %b = memref.load %n[] : memref<f32>
      %view = memref.collapse_shape %m [] : memref<1xf32> into memref<f32>
      %c = memref.load %view[] : memref<f32>
      %d = memref.load %o[] : memref<f32>
      %p = arith.mulf %a, %b : f32
      %q = arith.addf %p, %c : f32
      %r = arith.addf %q, %d : f32
      memref.store %r, %y[%i] : memref<4xf32>
      gpu.return
    }
  }
  func.func @k(%x: memref<4xf32>, %n: memref<f32>, %m: memref<1xf32>, %o: memref<f32>, %y: memref<4xf32>)
      attributes {mlirc.kernel, mlirc.values = array<i64: 1, 2>} {
    %one = arith.constant 1 : index
    %four = arith.constant 4 : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%one, %one, %one) threads in (%four, %one, %one)
      args(%x : memref<4xf32>, %n : memref<f32>, %m : memref<1xf32>, %y : memref<4xf32>, %o : memref<f32>)
    return
  }
}
