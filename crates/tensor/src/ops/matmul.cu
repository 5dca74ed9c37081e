// d = a · b over a batch, with any strides; plus a row. One number for each thread of a tile.

extern "C" __global__ void __launch_bounds__(TILE * TILE) tonnage_product(
    T *d, const T *a, const T *b, const BIAS *bias, u64 m, u64 n, u64 k, u64 bias_stride,
    u64 a_batch, u64 a_row, u64 a_column, u64 b_batch, u64 b_row, u64 b_column, u64 batches) {
  __shared__ C left[TILE][TILE + 1], right[TILE][TILE + 1];
  u64 column = (u64)blockIdx.x * TILE + threadIdx.x;
  for (u64 batch = blockIdx.z; batch < batches; batch += gridDim.z)
  for (u64 top = (u64)blockIdx.y * TILE; top < m; top += (u64)gridDim.y * TILE) {
    u64 row = top + threadIdx.y;
    C sum = C(0);
    for (u64 first = 0; first < k; first += TILE) {
      u64 term = first + threadIdx.x, other = first + threadIdx.y;
      left[threadIdx.y][threadIdx.x] =
          row < m && term < k ? A_OF(widen(a[batch * a_batch + row * a_row + term * a_column])) : C(0);
      right[threadIdx.y][threadIdx.x] =
          other < k && column < n ? B_OF(widen(b[batch * b_batch + other * b_row + column * b_column])) : C(0);
      __syncthreads();
      for (int it = 0; it < TILE; ++it) sum = sum + left[threadIdx.y][it] * right[it][threadIdx.x];
      __syncthreads();
    }
    if (row < m && column < n) {
      if (bias) sum = sum + Wide<C>::of(widen(bias[column * bias_stride]));
      d[(batch * m + row) * n + column] = Narrow<T>::of(sum);
    }
  }
}
