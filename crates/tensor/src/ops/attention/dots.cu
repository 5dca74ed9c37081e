// For each row of attention's output: its product with its gradient.
//
// Given: T, C, DEPTH, PACKED (both can be read in packs of 16 bytes). Eight threads have a row.

struct View { u64 at; i64 batch, head, row, column; };
struct Sizes { i64 heads, rows; u64 all; };

constexpr int PACK = PACKED ? 16 / (int)sizeof(T) : 1;

extern "C" __global__ void __launch_bounds__(256)
tonnage_attend_dots(const __grid_constant__ Sizes sizes, const __grid_constant__ View output, const __grid_constant__ View grad,
                    const __grid_constant__ View dots) {
  u64 index = global_thread() / 8;
  int first = (int)(threadIdx.x & 7) * PACK;
  C sum = 0;
  i64 row = (i64)(index % (u64)sizes.rows), head = (i64)(index / (u64)sizes.rows);
  i64 outer = head / sizes.heads, inner = head % sizes.heads;
  if (index < sizes.all) {
    const T *a = (const T *)output.at + outer * output.batch + inner * output.head + row * output.row;
    const T *b = (const T *)grad.at + outer * grad.batch + inner * grad.head + row * grad.row;
    for (int column = first; column < DEPTH; column += 8 * PACK) {
#if PACKED
      pack<T, PACK> x = load_pack<PACK>(a + column), y = load_pack<PACK>(b + column);
#pragma unroll
      for (int e = 0; e < PACK; ++e) sum += to_compute(x.at[e]) * to_compute(y.at[e]);
#else
      sum += to_compute(a[column * output.column]) * to_compute(b[column * grad.column]);
#endif
    }
  }
  sum = warp_reduce<8>(sum, add_op());
  if (index < sizes.all && (threadIdx.x & 7) == 0)
    ((C *)dots.at)[outer * dots.batch + inner * dots.head + row * dots.row] = sum;
}
