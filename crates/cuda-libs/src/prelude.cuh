// What every kernel may use: short names of numbers, 16-bit floats, packs, warps and blocks, random numbers.
// No header of the toolkit is needed: conversions are PTX, for compute capability 8.0 and later.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// 16-bit floats are bits; arithmetic is done in f32.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(double x) { return (float)x; }
__device__ __forceinline__ float to_f32(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

__device__ __forceinline__ bf16 to_bf16(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
__device__ __forceinline__ f16 to_f16(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// To a type by its name: from_f32<bf16>(x). Rounds to nearest, ties to even.
template <class T>
__device__ __forceinline__ T from_f32(float x);
template <>
__device__ __forceinline__ float from_f32<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ double from_f32<double>(float x) {
    return (double)x;
}
template <>
__device__ __forceinline__ bf16 from_f32<bf16>(float x) {
    return to_bf16(x);
}
template <>
__device__ __forceinline__ f16 from_f32<f16>(float x) {
    return to_f16(x);
}

// The type in which numbers of type T are added and multiplied: f64 for f64, f32 for the rest.
template <class T>
struct compute_type {
    typedef float type;
};
template <>
struct compute_type<double> {
    typedef double type;
};
template <class T>
using compute_t = typename compute_type<T>::type;

__device__ __forceinline__ float to_compute(float x) { return x; }
__device__ __forceinline__ double to_compute(double x) { return x; }
__device__ __forceinline__ float to_compute(bf16 x) { return to_f32(x); }
__device__ __forceinline__ float to_compute(f16 x) { return to_f32(x); }
template <class T>
__device__ __forceinline__ T from_compute(float x) {
    return from_f32<T>(x);
}
template <class T>
__device__ __forceinline__ T from_compute(double x) {
    return (T)x;
}

// N neighbours that are loaded and stored as one, up to 16 bytes; addresses are multiples of their size.
template <int BYTES>
struct raw_bytes;
template <>
struct raw_bytes<1> {
    typedef u8 type;
};
template <>
struct raw_bytes<2> {
    typedef u16 type;
};
template <>
struct raw_bytes<4> {
    typedef u32 type;
};
template <>
struct raw_bytes<8> {
    typedef uint2 type;
};
template <>
struct raw_bytes<16> {
    typedef uint4 type;
};

template <class T, int N>
struct pack {
    union {
        T at[N];
        typename raw_bytes<(int)sizeof(T) * N>::type raw;
    };
    __device__ __forceinline__ pack() {}
    __device__ __forceinline__ T& operator[](int i) { return at[i]; }
    __device__ __forceinline__ const T& operator[](int i) const { return at[i]; }
};

template <int N, class T>
__device__ __forceinline__ pack<T, N> load_pack(const T* from) {
    typedef typename raw_bytes<(int)sizeof(T) * N>::type raw;
    pack<T, N> p;
    p.raw = *reinterpret_cast<const raw*>(from);
    return p;
}
template <int N, class T>
__device__ __forceinline__ void store_pack(T* to, const pack<T, N>& p) {
    typedef typename raw_bytes<(int)sizeof(T) * N>::type raw;
    *reinterpret_cast<raw*>(to) = p.raw;
}

// Where a thread is. Grids are one line here.
__device__ __forceinline__ u64 global_thread() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 global_threads() { return (u64)gridDim.x * blockDim.x; }
__device__ __forceinline__ u32 lane() { return threadIdx.x & 31u; }
__device__ __forceinline__ u32 warp() { return threadIdx.x >> 5; }

// Reductions by a fixed tree: equal from run to run. Every lane gets the answer.
struct add_op {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a + b;
    }
};
// The larger; a NaN wins, as in PyTorch.
struct max_op {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return (a != a || a > b) ? a : b;
    }
};
struct min_op {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return (a != a || a < b) ? a : b;
    }
};

template <int LANES = 32, class T, class Op>
__device__ __forceinline__ T warp_reduce(T x, Op op) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
    return warp_reduce(x, add_op());
}
template <class T>
__device__ __forceinline__ T warp_max(T x) {
    return warp_reduce(x, max_op());
}

// The same over a block of THREADS threads, a multiple of 32; every thread gets the answer. All threads must come.
template <int THREADS, class T, class Op>
__device__ __forceinline__ T block_reduce(T x, Op op) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is whole warps");
    x = warp_reduce(x, op);
    if (THREADS == 32) return x;
    constexpr int WARPS = THREADS / 32;
    __shared__ T parts[WARPS];
    __syncthreads();
    if (lane() == 0) parts[warp()] = x;
    __syncthreads();
    T all = parts[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) all = op(all, parts[i]);
    return all;
}
template <int THREADS, class T>
__device__ __forceinline__ T block_sum(T x) {
    return block_reduce<THREADS>(x, add_op());
}
template <int THREADS, class T>
__device__ __forceinline__ T block_max(T x) {
    return block_reduce<THREADS>(x, max_op());
}

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): four numbers of 32 bits from a key and a counter of 128 bits, equal
// to the host's.
__device__ __forceinline__ uint4 philox(u64 key, u64 counter_low, u64 counter_high) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    u32 c0 = (u32)counter_low, c1 = (u32)(counter_low >> 32);
    u32 c2 = (u32)counter_high, c3 = (u32)(counter_high >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
        u32 low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}
