// Kernels of the program for a machine with a GPU; compiled for every architecture without one.
#include "tonnage.cuh"
extern "C" __global__ void scale(float* x, float by, u64 count) {
    for (u64 i = global_thread(); i < count; i += global_threads()) x[i] *= by;
}
extern "C" __global__ void widen_bf16(const bf16* x, float* y) { y[global_thread()] = to_f32(x[global_thread()]); }
extern "C" __global__ void widen_f16(const f16* x, float* y) { y[global_thread()] = to_f32(x[global_thread()]); }
extern "C" __global__ void narrow(const float* x, bf16* y, f16* z) {
    u64 i = global_thread();
    y[i] = to_bf16(x[i]);
    z[i] = to_f16(x[i]);
}
extern "C" __global__ void random(uint4* to, u64 key, u64 low, u64 high) { to[0] = philox(key, low, high); }
extern "C" __global__ void sums(const float* x, float* y) {
    float v = x[threadIdx.x];
    float sum = block_sum<256>(v), top = block_max<256>(v);
    if (threadIdx.x == 0) { y[0] = sum; y[1] = top; }
}
extern "C" __global__ void packs(const bf16* x, bf16* y) {
    pack<bf16, 8> p = load_pack<8>(x + 8 * global_thread());
    for (int i = 0; i < 8; i++) p[i] = to_bf16(2 * to_f32(p[i]));
    store_pack(y + 8 * global_thread(), p);
}
extern "C" __global__ void shared(float* y) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < 50000; i += blockDim.x) tile[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) y[0] = tile[49999];
}
struct list { u64 addresses[60]; u32 counts[60]; };
extern "C" __global__ void fill_list(list of, float value) {
    float* to = (float*)of.addresses[blockIdx.x];
    for (u32 i = threadIdx.x; i < of.counts[blockIdx.x]; i += blockDim.x) to[i] = value + blockIdx.x;
}
