// RUN: %mlirc-opt %s --script 'attention:mma=mma,block_q=64,block_kv=64,stages=2' --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// Attention: the queries are read once into fragments; keys and values are copied one step ahead; the softmax's rows stay
// in the four lanes that hold them, without shared memory; the weights go from accumulator to operand in registers.
// CHECK-LABEL: gpu.func @attention_0
// CHECK: nvgpu.ldmatrix
// CHECK: nvgpu.device_async_copy %arg1{{.*}}, 8 {bypassL1}
// CHECK: nvgpu.device_async_copy %arg2{{.*}}, 8 {bypassL1}
// CHECK: nvvm.cp.async.commit.group
// CHECK: scf.for %{{.*}} = %c0 to %c128 step %c64 iter_args
// CHECK: nvvm.cp.async.wait.group 0
// CHECK: gpu.barrier
// CHECK: nvgpu.device_async_copy %arg1
// CHECK: nvgpu.ldmatrix {{.*}}transpose = false
// CHECK: nvgpu.mma.sync
// CHECK-NOT: gpu.barrier
// CHECK: gpu.shuffle xor %{{.*}}, %c1_i32
// CHECK: gpu.shuffle xor %{{.*}}, %c2_i32
// CHECK-NOT: gpu.shuffle xor %{{.*}}, %c4_i32
// CHECK: math.exp2
// CHECK: nvgpu.ldmatrix {{.*}}transpose = true
// CHECK: nvgpu.mma.sync
// CHECK: scf.yield
// CHECK: arith.divf
// CHECK: vector.store %{{.*}}, %arg3
// CHECK: gpu.launch_func @attention_0_gpu::@attention_0
func.func private @attention_0(%q: tensor<1x2x128x64xf16>, %k: tensor<1x2x128x64xf16>, %v: tensor<1x2x128x64xf16>)
    -> tensor<1x2x128x64xf16> attributes {mlirc.kernel, mlirc.kind = "attention"} {
  %o = "mlirc.attention"(%q, %k, %v) {scale = 0.125 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
      layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
      : (tensor<1x2x128x64xf16>, tensor<1x2x128x64xf16>, tensor<1x2x128x64xf16>) -> tensor<1x2x128x64xf16>
  return %o : tensor<1x2x128x64xf16>
}
