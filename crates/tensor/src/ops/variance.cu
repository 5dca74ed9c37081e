// Variances of rows in any layout, or their roots.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_var_rows(
    OUT *out, const IN *in, const __grid_constant__ Axes<KEPT> kept, const __grid_constant__ Axes<ALONG> along, u64 rows,
    u64 width, double divisor) {
  u64 packs = width / PACK;
  for (u64 row = first_row(); row < rows; row += rows_at_once()) {
    const IN *from = in + place(kept, (INDEX)row);
    double mean = 0, square = 0;
#pragma unroll 4
    for (u64 at = member(); at < packs; at += GROUP) {
      pack<IN, PACK> read = load_pack<PACK>(from + place(along, (INDEX)(at * PACK)));
#pragma unroll
      for (int j = 0; j < PACK; ++j) mean += number<double>(read.at[j]);
    }
    mean = group_reduce(mean, adds()) / (double)width;
#pragma unroll 4
    for (u64 at = member(); at < packs; at += GROUP) {
      pack<IN, PACK> read = load_pack<PACK>(from + place(along, (INDEX)(at * PACK)));
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        double centered = number<double>(read.at[j]) - mean;
        square += centered * centered;
      }
    }
    square = group_reduce(square, adds()) / divisor;
    if (member() == 0) out[row] = Narrow<OUT>::of(ROOT ? sqrt(square) : square);
  }
}
