// RUN: %mlirc-opt %s --pipeline canonicalize,cse | %filecheck %s

// A tensor map is printed and parsed as it is, goes where nothing launches with it, and is one where two are equal.
// CHECK-LABEL: func.func @k
// CHECK: %[[M:.*]] = "mlirc.tensor_map"(%{{.*}}) {{.*}}box = array<i64: 8, 16>, swizzle = 64 : i64{{.*}} : (memref<13x24xf32>) -> !llvm.ptr
// CHECK-NOT: mlirc.tensor_map
// CHECK: args(%[[M]] : !llvm.ptr, %[[M]] : !llvm.ptr)
// CHECK: gpu.func @k_0(%{{.*}}: !llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>},
module attributes {gpu.container_module} {
  func.func @k(%x: memref<13x24xf32>) {
    %c1 = arith.constant 1 : index
    %a = "mlirc.tensor_map"(%x) {box = array<i64: 8, 16>, swizzle = 64 : i64} : (memref<13x24xf32>) -> !llvm.ptr
    %b = "mlirc.tensor_map"(%x) {box = array<i64: 8, 16>, swizzle = 64 : i64} : (memref<13x24xf32>) -> !llvm.ptr
    %c = "mlirc.tensor_map"(%x) {box = array<i64: 8, 4>, swizzle = 0 : i64} : (memref<13x24xf32>) -> !llvm.ptr
    gpu.launch_func @k_gpu::@k_0 blocks in (%c1, %c1, %c1) threads in (%c1, %c1, %c1) args(%a : !llvm.ptr, %b : !llvm.ptr)
    return
  }
  gpu.module @k_gpu {
    gpu.func @k_0(%a: !llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>},
                  %b: !llvm.ptr {llvm.align = 64 : i64, llvm.byval = !llvm.array<128 x i8>}) kernel {
      gpu.return
    }
  }
}
