// What every kernel of tensors begins with, beside what all kernels have: every element type, and conversions as on the
// host.

#include "tonnage.cuh"

#define DEVICE inline __device__ __attribute__((always_inline))

// The number of an element, in the type that it is computed with.
DEVICE float widen(bf16 it) { return to_f32(it); }
DEVICE float widen(f16 it) { return to_f32(it); }
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
  complex() = default;
  DEVICE complex(float re, float im = 0) : re(re), im(im) {}
};
DEVICE complex widen(complex it) { return it; }
DEVICE complex operator+(complex a, complex b) { return complex(a.re + b.re, a.im + b.im); }
DEVICE complex operator-(complex a, complex b) { return complex(a.re - b.re, a.im - b.im); }
DEVICE complex operator-(complex a) { return complex(-a.re, -a.im); }
DEVICE complex operator*(complex a, complex b) { return complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re); }
// By the larger part of the divisor, so that squares do not overflow.
DEVICE complex operator/(complex a, complex b) {
  if (fabsf(b.re) >= fabsf(b.im)) {
    float ratio = b.im / b.re, scale = b.re + b.im * ratio;
    return complex((a.re + a.im * ratio) / scale, (a.im - a.re * ratio) / scale);
  }
  float ratio = b.re / b.im, scale = b.re * ratio + b.im;
  return complex((a.re * ratio + a.im) / scale, (a.im * ratio - a.re) / scale);
}
DEVICE bool operator==(complex a, complex b) { return a.re == b.re && a.im == b.im; }
DEVICE bool operator!=(complex a, complex b) { return !(a == b); }
DEVICE complex conj(complex it) { return complex(it.re, -it.im); }

// As Rust's `as`: the nearest that can be, and zero for what is no number.
DEVICE i64 whole(float it) { return isnan(it) ? 0 : __float2ll_rz(it); }
DEVICE i64 whole(double it) { return isnan(it) ? 0 : __double2ll_rz(it); }
DEVICE i64 whole(i64 it) { return it; }
DEVICE i64 whole(complex it) { return whole(it.re); }
DEVICE i64 whole(bool it) { return it; }

DEVICE float real32(float it) { return it; }
DEVICE float real32(double it) { return (float)it; }
DEVICE float real32(i64 it) { return (float)(double)it; }
DEVICE float real32(complex it) { return it.re; }
DEVICE float real32(bool it) { return it; }

DEVICE double real64(float it) { return it; }
DEVICE double real64(double it) { return it; }
DEVICE double real64(i64 it) { return (double)it; }
DEVICE double real64(complex it) { return it.re; }
DEVICE double real64(bool it) { return it; }

DEVICE float imaginary(complex it) { return it.im; }
template <typename W> DEVICE float imaginary(W) { return 0; }

DEVICE bool is_zero(float it) { return it == 0; }
DEVICE bool is_zero(double it) { return it == 0; }
DEVICE bool is_zero(i64 it) { return it == 0; }
DEVICE bool is_zero(complex it) { return it.re == 0 && it.im == 0; }
DEVICE bool is_zero(bool it) { return !it; }

// An element of memory from a wide number.
template <typename T> struct Narrow;
template <> struct Narrow<float> { template <typename W> DEVICE static float of(W it) { return real32(it); } };
template <> struct Narrow<double> { template <typename W> DEVICE static double of(W it) { return real64(it); } };
template <> struct Narrow<bf16> { template <typename W> DEVICE static bf16 of(W it) { return to_bf16(real32(it)); } };
template <> struct Narrow<f16> { template <typename W> DEVICE static f16 of(W it) { return to_f16(real32(it)); } };
template <> struct Narrow<i64> { template <typename W> DEVICE static i64 of(W it) { return whole(it); } };
// What does not fit into 64 bits is the nearest that does; of that, the lowest bits.
template <> struct Narrow<int> { template <typename W> DEVICE static int of(W it) { return (int)whole(it); } };
template <> struct Narrow<u8> { template <typename W> DEVICE static u8 of(W it) { return (u8)whole(it); } };
template <> struct Narrow<truth> {
  template <typename W> DEVICE static truth of(W it) { truth narrow; narrow.byte = !is_zero(it); return narrow; }
};
template <> struct Narrow<complex> {
  template <typename W> DEVICE static complex of(W it) { return complex(real32(it), imaginary(it)); }
};

// A wide number of one kind from one of another.
template <typename C> struct Wide;
template <> struct Wide<float> { template <typename W> DEVICE static float of(W it) { return real32(it); } };
template <> struct Wide<double> { template <typename W> DEVICE static double of(W it) { return real64(it); } };
template <> struct Wide<i64> { template <typename W> DEVICE static i64 of(W it) { return whole(it); } };
template <> struct Wide<complex> {
  template <typename W> DEVICE static complex of(W it) { return complex(real32(it), imaginary(it)); }
};
template <> struct Wide<bool> { template <typename W> DEVICE static bool of(W it) { return !is_zero(it); } };

// Where queued work says that it failed: the first to do so wins, until the host has read it.
struct Failure { u32 taken; u32 ready; i64 value; };
DEVICE void fail(Failure *failure, u32 ticket, i64 value) {
  if (atomicCAS_system(&failure->taken, 0u, ticket) == 0u) {
    *(volatile i64 *)&failure->value = value;
    __threadfence_system();
    *(volatile u32 *)&failure->ready = ticket;
  }
}

// The sum over a warp, as `warp_sum` has it for real numbers.
DEVICE complex warp_sum(complex it) { return complex(warp_sum(it.re), warp_sum(it.im)); }

// A lane's number, for all of a warp.
template <typename W> DEVICE W shuffle(W it, int lane) { return __shfl_sync(0xffffffffu, it, lane); }
DEVICE complex shuffle(complex it, int lane) { return complex(shuffle(it.re, lane), shuffle(it.im, lane)); }
