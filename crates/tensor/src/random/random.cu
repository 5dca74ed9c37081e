// Random numbers, bit by bit those of the host: N of type T from each draw of four times 32 bits.

// 0 ≤ x < 1, in the bits that a float has.
DEVICE float unit32(u32 bits) { return (float)(bits >> 8) / 16777216.0f; }
DEVICE double unit64(u32 high, u32 low) {
  u64 bits = (u64)high << 32 | low;
  return (double)(bits >> 11) / 9007199254740992.0;
}

// The natural logarithm of a normal positive number, as math.rs has it.
DEVICE float ln_normal(float x) {
  u32 shifted = __float_as_uint(x) - __float_as_uint(1.41421356237309504880f * 0.5f);
  int n = (int)shifted >> 23;
  float m = __uint_as_float(__float_as_uint(x) - ((u32)n << 23));
  float s = (m - 1.0f) / (m + 1.0f), q = s * s;
  float series = 2.0f / 9.0f;
  series = series * q + 2.0f / 7.0f;
  series = series * q + 2.0f / 5.0f;
  series = series * q + 2.0f / 3.0f;
  series = series * q + 2.0f;
  return s * series + (float)n * 0.693147180559945309417f;
}

// Sine and cosine of a part of a whole turn, as math.rs has them.
DEVICE void sin_cos_turn(float turn, float &sin, float &cos) {
  const float ROUND = 12582912.0f;
  float shifted = turn * 4.0f + ROUND;
  u32 quarter = __float_as_uint(shifted);
  float x = (turn - (shifted - ROUND) * 0.25f) * 6.28318530717958647693f, q = x * x;
  float odd = 1.0f / 362880.0f;
  odd = odd * q + -1.0f / 5040.0f;
  odd = odd * q + 1.0f / 120.0f;
  odd = odd * q + -1.0f / 6.0f;
  odd = odd * q + 1.0f;
  odd = x * odd;
  float even = -1.0f / 3628800.0f;
  even = even * q + 1.0f / 40320.0f;
  even = even * q + -1.0f / 720.0f;
  even = even * q + 1.0f / 24.0f;
  even = even * q + -0.5f;
  even = even * q + 1.0f;
  float a = quarter & 1 ? even : odd, b = quarter & 1 ? odd : even;
  sin = quarter & 2 ? -a : a;
  cos = (quarter + 1) & 2 ? -b : b;
}

// Two normal numbers, by Box and Muller.
DEVICE void normal32(u32 a, u32 b, float &first, float &second) {
  float radius = sqrtf(-2.0f * ln_normal(1.0f - unit32(a)));
  float sin, cos;
  sin_cos_turn(unit32(b), sin, cos);
  first = radius * cos;
  second = radius * sin;
}
DEVICE void normal64(double a, double b, double &first, double &second) {
  double radius = sqrt(-2.0 * log(1.0 - a)), sin, cos;
  sincos(6.28318530717958647692528676655900577 * b, &sin, &cos);
  first = radius * cos;
  second = radius * sin;
}

struct Shape { u64 seed, offset; i64 low; u64 range; };

// The numbers of one draw.
DEVICE void uniform(uint4 d, Shape, float *to) { to[0] = unit32(d.x), to[1] = unit32(d.y), to[2] = unit32(d.z), to[3] = unit32(d.w); }
DEVICE void uniform(uint4 d, Shape, double *to) { to[0] = unit64(d.x, d.y), to[1] = unit64(d.z, d.w); }
DEVICE void normal(uint4 d, Shape, float *to) { normal32(d.x, d.y, to[0], to[1]), normal32(d.z, d.w, to[2], to[3]); }
DEVICE void normal(uint4 d, Shape, double *to) {
  normal64(unit64(d.x, d.y), unit64(d.z, d.w), to[0], to[1]);
}
DEVICE void normal(uint4 d, Shape, complex *to) {
  const float HALF = 0.707106781186547524400844362104849039f;
  normal32(d.x, d.y, to[0].re, to[0].im), normal32(d.z, d.w, to[1].re, to[1].im);
  to[0] = complex(to[0].re * HALF, to[0].im * HALF), to[1] = complex(to[1].re * HALF, to[1].im * HALF);
}
DEVICE void integers(uint4 d, Shape shape, i64 *to) {
  to[0] = shape.low + (i64)__umul64hi((u64)d.x << 32 | d.y, shape.range);
  to[1] = shape.low + (i64)__umul64hi((u64)d.z << 32 | d.w, shape.range);
}
// Whether an element stays.
DEVICE void keep(uint4 d, Shape shape, i64 *to) {
  to[0] = (d.x >> 8) < shape.range, to[1] = (d.y >> 8) < shape.range;
  to[2] = (d.z >> 8) < shape.range, to[3] = (d.w >> 8) < shape.range;
}

struct Places { u64 sizes[AXES + 1]; u64 strides[AXES + 1]; };

// With AXES, the target lies in any way; without, in order, packs of N at multiples of their size if ALIGNED. In a graph,
// seed and offset begin where `from` says.
extern "C" __global__ void __launch_bounds__(256) tonnage_random(
    T *to, u64 n, const u64 *from, const __grid_constant__ Shape shape, const __grid_constant__ Places places) {
  u64 seed = from ? from[0] : shape.seed, offset = (from ? from[1] : 0) + shape.offset;
  for (u64 group = global_thread(); group * N < n; group += global_threads()) {
    C numbers[N];
    KIND(philox(seed, group, offset), shape, numbers);
    u64 first = group * N;
    if (AXES == 0 && ALIGNED && first + N <= n) {
      pack<T, N> p;
#pragma unroll
      for (int j = 0; j < N; ++j) p.at[j] = Narrow<T>::of(numbers[j]);
      store_pack<N>(to + first, p);
      continue;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      u64 rest = first + j, at = AXES == 0 ? rest : 0;
      if (rest >= n) break;
#pragma unroll
      for (int axis = AXES - 1; axis >= 0; --axis) {
        at += rest % places.sizes[axis] * places.strides[axis];
        rest /= places.sizes[axis];
      }
      to[at] = Narrow<T>::of(numbers[j]);
    }
  }
}
