// What every kernel begins with: numbers, conversions between them, sums over a block.
//
// No header is included: a machine that runs kernels need not have the compiler's.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE inline __device__ __attribute__((always_inline))
#define DEVICE_MEMBER inline __device__ __attribute__((always_inline))

// Numbers of 16 bits: bits in memory, `float` where they are computed with.
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

DEVICE float widen(bf16 it) { return __uint_as_float((u32)it.bits << 16); }
DEVICE float widen(f16 it) { float wide; asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(it.bits)); return wide; }
DEVICE float widen(float it) { return it; }
DEVICE double widen(double it) { return it; }
DEVICE i64 widen(i64 it) { return it; }
DEVICE i64 widen(int it) { return it; }
DEVICE i64 widen(u8 it) { return it; }

// A truth is a byte.
struct truth { u8 byte; };
DEVICE i64 widen(truth it) { return it.byte; }

// Two floats.
struct complex {
  float re, im;
  DEVICE_MEMBER complex() : re(0), im(0) {}
  DEVICE_MEMBER complex(float re, float im = 0) : re(re), im(im) {}
};
DEVICE complex widen(complex it) { return it; }
DEVICE complex operator+(complex a, complex b) { return complex(a.re + b.re, a.im + b.im); }
DEVICE complex operator-(complex a, complex b) { return complex(a.re - b.re, a.im - b.im); }
DEVICE complex operator-(complex a) { return complex(-a.re, -a.im); }
DEVICE complex operator*(complex a, complex b) { return complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re); }
DEVICE complex operator/(complex a, complex b) {
  float square = b.re * b.re + b.im * b.im;
  return complex((a.re * b.re + a.im * b.im) / square, (a.im * b.re - a.re * b.im) / square);
}
DEVICE bool operator==(complex a, complex b) { return a.re == b.re && a.im == b.im; }
DEVICE bool operator!=(complex a, complex b) { return !(a == b); }
DEVICE complex conj(complex it) { return complex(it.re, -it.im); }

// As Rust's `as`: the nearest that can be, and zero for what is no number.
DEVICE i64 whole(float it) { return isnan(it) ? 0 : __float2ll_rz(it); }
DEVICE i64 whole(double it) { return isnan(it) ? 0 : __double2ll_rz(it); }
DEVICE i64 whole(i64 it) { return it; }
DEVICE i64 whole(complex it) { return whole(it.re); }

DEVICE float real32(float it) { return it; }
DEVICE float real32(double it) { return (float)it; }
DEVICE float real32(i64 it) { return (float)it; }
DEVICE float real32(complex it) { return it.re; }

DEVICE double real64(float it) { return it; }
DEVICE double real64(double it) { return it; }
DEVICE double real64(i64 it) { return (double)it; }
DEVICE double real64(complex it) { return it.re; }

DEVICE float imaginary(complex it) { return it.im; }
template <typename W> DEVICE float imaginary(W) { return 0; }

DEVICE bool is_zero(float it) { return it == 0; }
DEVICE bool is_zero(double it) { return it == 0; }
DEVICE bool is_zero(i64 it) { return it == 0; }
DEVICE bool is_zero(complex it) { return it.re == 0 && it.im == 0; }

// An element of memory from a wide number.
template <typename T> struct Narrow;
template <> struct Narrow<float> { template <typename W> DEVICE_MEMBER static float of(W it) { return real32(it); } };
template <> struct Narrow<double> { template <typename W> DEVICE_MEMBER static double of(W it) { return real64(it); } };
template <> struct Narrow<bf16> {
  template <typename W> DEVICE_MEMBER static bf16 of(W it) {
    bf16 narrow;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(real32(it)));
    return narrow;
  }
};
template <> struct Narrow<f16> {
  template <typename W> DEVICE_MEMBER static f16 of(W it) {
    f16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(real32(it)));
    return narrow;
  }
};
template <> struct Narrow<i64> { template <typename W> DEVICE_MEMBER static i64 of(W it) { return whole(it); } };
template <> struct Narrow<int> {
  DEVICE_MEMBER static int of(i64 it) { return (int)it; }
  template <typename W> DEVICE_MEMBER static int of(W it) {
    i64 wide = whole(it);
    return (int)(wide > 2147483647LL ? 2147483647LL : wide < -2147483648LL ? -2147483648LL : wide);
  }
};
template <> struct Narrow<u8> {
  DEVICE_MEMBER static u8 of(i64 it) { return (u8)it; }
  template <typename W> DEVICE_MEMBER static u8 of(W it) {
    i64 wide = whole(it);
    return (u8)(wide > 255 ? 255 : wide < 0 ? 0 : wide);
  }
};
template <> struct Narrow<truth> {
  template <typename W> DEVICE_MEMBER static truth of(W it) { truth narrow; narrow.byte = !is_zero(it); return narrow; }
};
template <> struct Narrow<complex> {
  template <typename W> DEVICE_MEMBER static complex of(W it) { return complex(real32(it), imaginary(it)); }
};

// A wide number of one kind from one of another.
template <typename C> struct Wide;
template <> struct Wide<float> { template <typename W> DEVICE_MEMBER static float of(W it) { return real32(it); } };
template <> struct Wide<double> { template <typename W> DEVICE_MEMBER static double of(W it) { return real64(it); } };
template <> struct Wide<i64> { template <typename W> DEVICE_MEMBER static i64 of(W it) { return whole(it); } };
template <> struct Wide<complex> {
  template <typename W> DEVICE_MEMBER static complex of(W it) { return complex(real32(it), imaginary(it)); }
};
template <> struct Wide<bool> { template <typename W> DEVICE_MEMBER static bool of(W it) { return !is_zero(it); } };

// Several elements that lie side by side, moved at once.
template <typename T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };

// Where queued work says that it failed: the first to do so wins, until the host has read it.
struct Failure { u32 ticket; u32 pad; i64 value; };
DEVICE void fail(Failure *failure, u32 ticket, i64 value) {
  if (atomicCAS_system(&failure->ticket, 0u, ticket) == 0u) {
    failure->value = value;
    __threadfence_system();
  }
}

// Sums over a block of threads, by a tree that never changes: equal from run to run. `shared` has room for 32.
struct Add { template <typename C> DEVICE_MEMBER static C of(C a, C b) { return a + b; } };
struct Largest { template <typename C> DEVICE_MEMBER static C of(C a, C b) { return a > b || isnan(a) ? a : b; } };

template <typename Join> DEVICE float across_warp(float it) {
  for (int step = 16; step > 0; step >>= 1) it = Join::of(it, __shfl_xor_sync(0xffffffffu, it, step));
  return it;
}
template <typename Join> DEVICE double across_warp(double it) {
  for (int step = 16; step > 0; step >>= 1) it = Join::of(it, __shfl_xor_sync(0xffffffffu, it, step));
  return it;
}
template <typename Join> DEVICE i64 across_warp(i64 it) {
  for (int step = 16; step > 0; step >>= 1) it = Join::of(it, __shfl_xor_sync(0xffffffffu, it, step));
  return it;
}
template <typename Join> DEVICE complex across_warp(complex it) {
  for (int step = 16; step > 0; step >>= 1) {
    complex other(__shfl_xor_sync(0xffffffffu, it.re, step), __shfl_xor_sync(0xffffffffu, it.im, step));
    it = Join::of(it, other);
  }
  return it;
}

// Every thread of the block gets the result; the block has whole warps. `none` changes nothing.
template <typename Join, typename C> DEVICE C across_block(C it, C none, C *shared) {
  it = across_warp<Join>(it);
  u32 warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  __syncthreads();
  if (lane == 0) shared[warp] = it;
  __syncthreads();
  return across_warp<Join>(lane < warps ? shared[lane] : none);
}
