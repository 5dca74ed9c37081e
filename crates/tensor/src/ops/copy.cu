// A copy whose source lies side by side along another axis than its target: by tiles through shared memory, so that both
// are met side by side. From types S to types T; CONVERT makes one of the other. AXES others are walked one by one.

#define TILE 32
#define ROWS 8

struct Others { u64 sizes[AXES]; u64 from[AXES]; u64 to[AXES]; };

// `columns` lie side by side in the target, `rows` in the source.
extern "C" __global__ void __launch_bounds__(TILE * ROWS) tonnage_transpose(
    T *to, const S *from, u32 columns, u32 rows, u64 to_row, u64 from_column, const __grid_constant__ Others others) {
  __shared__ S tile[TILE][TILE + 1];
  u32 across = (columns + TILE - 1) / TILE;
  u32 first_column = blockIdx.x % across * TILE, first_row = blockIdx.x / across * TILE;
  u32 x = threadIdx.x % TILE, y = threadIdx.x / TILE;
  u64 rest = blockIdx.y;
#pragma unroll
  for (int axis = AXES - 1; axis >= 0; --axis) {
    u64 index = rest % others.sizes[axis];
    rest /= others.sizes[axis];
    from += index * others.from[axis];
    to += index * others.to[axis];
  }
#pragma unroll
  for (u32 it = 0; it < TILE; it += ROWS) {
    u32 column = first_column + y + it, row = first_row + x;
    if (column < columns && row < rows) tile[y + it][x] = from[column * from_column + row];
  }
  __syncthreads();
#pragma unroll
  for (u32 it = 0; it < TILE; it += ROWS) {
    u32 column = first_column + x, row = first_row + y + it;
    if (column < columns && row < rows) to[row * to_row + column] = CONVERT(tile[x][y + it]);
  }
}
