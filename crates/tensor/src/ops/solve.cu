// Equations with Hermitian positive definite matrices: Cholesky's decomposition, substitution, the matrix's gradient.
//
// Given: T (float, double or complex), THREADS of a block, and CONJ0 and CONJ1: whether the inputs' numbers are the
// conjugates of those in memory. Outputs are contiguous.

// A batch of matrices: strides in elements.
struct View { u64 at; i64 matrix, row, column; };

DEVICE float adjoint(float it) { return it; }
DEVICE double adjoint(double it) { return it; }
DEVICE complex adjoint(complex it) { return conj(it); }

DEVICE float half_of(float it) { return 0.5f * it; }
DEVICE double half_of(double it) { return 0.5 * it; }
DEVICE complex half_of(complex it) { return complex(0.5f * it.re, 0.5f * it.im); }

DEVICE float real_part(float it) { return it; }
DEVICE double real_part(double it) { return it; }
DEVICE float real_part(complex it) { return it.re; }

DEVICE float root_of(float it) { return sqrtf(it); }
DEVICE double root_of(double it) { return sqrt(it); }

template <bool CONJ> DEVICE T read(const View &view, i64 matrix, i64 row, i64 column) {
  T it = ((const T *)view.at)[matrix * view.matrix + row * view.row + column * view.column];
  return CONJ ? adjoint(it) : it;
}

// lower·lowerᴴ = a, column by column. A block has a matrix. Only the lower triangle is read.
extern "C" __global__ void __launch_bounds__(THREADS)
tonnage_cholesky(const __grid_constant__ View a, T *all, i64 size, Failure *failure, u32 ticket) {
  i64 matrix = blockIdx.x;
  T *lower = all + matrix * size * size;
  for (i64 column = 0; column < size; ++column) {
    for (i64 row = column + (i64)threadIdx.x; row < size; row += THREADS) {
      T rest = read<CONJ0>(a, matrix, row, column);
      for (i64 it = 0; it < column; ++it) rest = rest - lower[row * size + it] * adjoint(lower[column * size + it]);
      lower[row * size + column] = rest;
    }
    __syncthreads();
    auto pivot = real_part(lower[column * size + column]);
    // All threads have read the pivot before it changes.
    __syncthreads();
    // Neither zero, negative, infinite nor no number. All threads find the same.
    if (!(pivot > 0) || pivot - pivot != 0) {
      if (threadIdx.x == 0) fail(failure, ticket, matrix * size + column);
      return;
    }
    auto root = root_of(pivot);
    for (i64 row = column + (i64)threadIdx.x; row < size; row += THREADS) {
      T &it = lower[row * size + column];
      it = row == column ? T(root) : it / T(root);
      if (row != column) lower[column * size + row] = T(0);
    }
    __syncthreads();
  }
}

// x = (lower·lowerᴴ)⁻¹·b. A warp has a column: its lanes share the products of each row.
extern "C" __global__ void __launch_bounds__(THREADS)
tonnage_substitute(const __grid_constant__ View lower, const __grid_constant__ View b, T *all, i64 size, i64 width, i64 columns) {
  i64 index = (i64)(global_thread() / 32);
  // A warp as a whole.
  if (index >= columns) return;
  i64 matrix = index / width, column = index % width;
  T *x = all + matrix * size * width + column;
  for (i64 row = 0; row < size; ++row) {
    T sum = T(0);
    for (i64 other = lane(); other < row; other += 32)
      sum = sum + read<CONJ0>(lower, matrix, row, other) * x[other * width];
    sum = warp_sum(sum);
    if (lane() == 0) x[row * width] = (read<CONJ1>(b, matrix, row, column) - sum) / read<CONJ0>(lower, matrix, row, row);
    __syncwarp();
  }
  for (i64 row = size - 1; row >= 0; --row) {
    T sum = T(0);
    for (i64 other = row + 1 + lane(); other < size; other += 32)
      sum = sum + adjoint(read<CONJ0>(lower, matrix, other, row)) * x[other * width];
    sum = warp_sum(sum);
    if (lane() == 0) x[row * width] = (x[row * width] - sum) / read<CONJ0>(lower, matrix, row, row);
    __syncwarp();
  }
}

// to = -(g·xᴴ + x·gᴴ) / 2. A thread has an element.
extern "C" __global__ void __launch_bounds__(THREADS)
tonnage_hermitian_grad(const __grid_constant__ View g, const __grid_constant__ View x, T *to, i64 size, i64 width, u64 all) {
  for (u64 index = global_thread(); index < all; index += global_threads()) {
    i64 column = (i64)(index % (u64)size), row = (i64)(index / (u64)size % (u64)size);
    i64 matrix = (i64)(index / (u64)size / (u64)size);
    T first = T(0), second = T(0);
    for (i64 it = 0; it < width; ++it) {
      first = first - read<CONJ0>(g, matrix, row, it) * adjoint(read<CONJ1>(x, matrix, column, it));
      second = second - read<CONJ1>(x, matrix, row, it) * adjoint(read<CONJ0>(g, matrix, column, it));
    }
    to[index] = half_of(first + second);
  }
}
