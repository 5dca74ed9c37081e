// The norm of a list of tensors as one vector: sums of squares by PARTS blocks, then one of all. AXES is that of a tensor
// that does not lie in order, which is then the only one of its list.

#define MOST 64
#define THREADS 256

struct List { u64 at[MOST]; u64 sizes[MOST]; };
struct Places { u64 sizes[AXES + 1]; u64 strides[AXES + 1]; };

#ifdef SQUARES
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_squares(
    double *parts, const __grid_constant__ List list, u32 count, u32 is_first, const __grid_constant__ Places places) {
  double sum = 0;
  for (u32 which = 0; which < count; ++which) {
    const T *from = (const T *)list.at[which];
    u64 n = list.sizes[which], whole = n / PACK * PACK;
    for (u64 first = global_thread() * PACK; first < whole; first += global_threads() * PACK) {
      u64 at = AXES == 0 ? first : 0, rest = first;
#pragma unroll
      for (int axis = AXES - 1; axis >= 0; --axis) {
        at += rest % places.sizes[axis] * places.strides[axis];
        rest /= places.sizes[axis];
      }
      pack<T, PACK> p = load_pack<PACK>(from + at);
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        double it = real32(widen(p.at[j]));
        sum += it * it;
      }
    }
    for (u64 at = whole + global_thread(); at < n; at += global_threads()) {
      double it = real32(widen(from[at]));
      sum += it * it;
    }
  }
  sum = block_sum<THREADS>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = is_first ? sum : parts[blockIdx.x] + sum;
}
#endif

#ifdef ROOT
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_root(float *norm, const double *parts, u32 count) {
  double sum = 0;
  for (u32 at = threadIdx.x; at < count; at += THREADS) sum += parts[at];
  sum = block_sum<THREADS>(sum);
  if (threadIdx.x == 0) *norm = (float)sqrt(sum);
}
#endif
