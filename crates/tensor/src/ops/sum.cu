// Sums of rows and of columns: out[k] = scale · Σ in[k, r], in more digits than the numbers have.

// A sum of complex numbers.
struct twice { double re, im; };
DEVICE twice operator+(twice a, twice b) { twice sum = {a.re + b.re, a.im + b.im}; return sum; }
DEVICE twice from_lane(twice it, int step) {
  twice other = {from_lane(it.re, step), from_lane(it.im, step)};
  return other;
}

template <class N> struct Term;
template <> struct Term<float> { DEVICE static float of(float it) { return it; } };
template <> struct Term<double> {
  DEVICE static double of(float it) { return it; }
  DEVICE static double of(double it) { return it; }
};
template <> struct Term<i64> { DEVICE static i64 of(i64 it) { return it; } };
template <> struct Term<twice> {
  DEVICE static twice of(complex it) { twice term = {it.re, CONJ ? -it.im : it.im}; return term; }
  DEVICE static twice of(twice it) { return it; }
};

DEVICE OUT result(double sum, double scale) { return Narrow<OUT>::of(sum * scale); }
DEVICE OUT result(i64 sum, double) { return Narrow<OUT>::of(sum); }
DEVICE OUT result(twice sum, double scale) {
  return Narrow<OUT>::of(complex((float)(sum.re * scale), (float)(sum.im * scale)));
}

#ifdef COLUMNS
// Each lane takes PACK columns, LANES lanes lie side by side, and the block's lines of lanes share the rows.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_sum_columns(
    OUT *out, const IN *in, const __grid_constant__ Axes<KEPT> kept, const __grid_constant__ Axes<ALONG> along, u64 columns,
    u64 width, double scale) {
  constexpr int LINES = THREADS / LANES, WARPS = THREADS / 32;
  __shared__ SUM parts[WARPS][LANES * PACK];
  u32 x = threadIdx.x % LANES, y = threadIdx.x / LANES;
  for (u64 block = blockIdx.x; block * LANES * PACK < columns; block += gridDim.x) {
    u64 column = (block * LANES + x) * PACK;
    SUM sums[PACK];
#pragma unroll
    for (int j = 0; j < PACK; ++j) sums[j] = SUM();
    if (column < columns) {
      const IN *from = in + place(kept, (INDEX)column);
      for (u64 row = y; row < width; row += (u64)LINES * ROWS_AT_ONCE) {
        pack<IN, PACK> read[ROWS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < ROWS_AT_ONCE; ++u)
          if (row + u * LINES < width) read[u] = load_pack<PACK>(from + place(along, (INDEX)(row + u * LINES)));
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
          PART part = PART();
#pragma unroll
          for (int u = 0; u < ROWS_AT_ONCE; ++u)
            if (row + u * LINES < width) part = part + Term<PART>::of(widen(read[u].at[j]));
          sums[j] = sums[j] + Term<SUM>::of(part);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < PACK; ++j) {
#pragma unroll
      for (int step = 16; step >= LANES; step /= 2) sums[j] = sums[j] + from_lane(sums[j], step);
      if (lane() < LANES) parts[warp()][x * PACK + j] = sums[j];
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < LANES * PACK; at += THREADS) {
      SUM sum = parts[0][at];
#pragma unroll
      for (int it = 1; it < WARPS; ++it) sum = sum + parts[it][at];
      if (block * LANES * PACK + at < columns) out[block * LANES * PACK + at] = result(sum, scale);
    }
    __syncthreads();
  }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_sum_rows(
    OUT *out, const IN *in, const __grid_constant__ Axes<KEPT> kept, const __grid_constant__ Axes<ALONG> along, u64 rows,
    u64 width, double scale) {
  for (u64 row = first_row(); row < rows; row += rows_at_once()) {
    const IN *from = in + place(kept, (INDEX)row);
    SUM sum = SUM();
    u64 packs = width / PACK;
#pragma unroll 4
    for (u64 at = member(); at < packs; at += GROUP) {
      pack<IN, PACK> read = load_pack<PACK>(from + place(along, (INDEX)(at * PACK)));
      PART part = PART();
#pragma unroll
      for (int j = 0; j < PACK; ++j) part = part + Term<PART>::of(widen(read.at[j]));
      sum = sum + Term<SUM>::of(part);
    }
    sum = group_reduce(sum, adds());
    if (member() == 0) out[row] = result(sum, scale);
  }
}
#endif
