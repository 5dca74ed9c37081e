// Attention without tensor cores, for any float and any width: forward, and each of its gradients.
//
// Given: T, C, WIDTH, DEPTH, CAUSAL, TILE (rows of a tile, a multiple of 16), and PART: what this program makes.
//
// made[left][slice] = Σ over right of weight[left][right] · from[right][slice]
//
// | PART | left | right | weight | from |
// | --- | --- | --- | --- | --- |
// | OUTPUT | queries | keys | softmax | values |
// | QUERIES | queries | keys | gradients of scores | keys |
// | KEYS | keys | queries | gradients of scores | queries |
// | VALUES | keys | queries | probabilities | gradient |
//
// A block makes a tile of rows and a slice of 64 columns; tiles of weights are computed, used and forgotten.

#define OUTPUT 0
#define QUERIES 1
#define KEYS 2
#define VALUES 3

struct View { u64 at; i64 batch, head, row, column; };
struct Sizes { i64 heads, rows, keys; double scale; u32 tiles, slices; };

constexpr int THREADS = 256, SIDE = 16, EACH = TILE / SIDE;
// Columns of a slice, of which a thread has 4; columns that a product takes at once.
constexpr int SLICE = 64, OWN = SLICE / SIDE, STEP = 16;
constexpr bool BY_QUERY = PART == OUTPUT || PART == QUERIES;
constexpr int COLUMNS = PART == OUTPUT || PART == VALUES ? DEPTH : WIDTH;

struct Shared {
  C left[TILE][STEP + 1], right[TILE][STEP + 1];
  C weights[TILE][TILE + 1];
  C from[TILE][SLICE];
};

template <typename E> DEVICE E *head_of(const View &view, i64 head, i64 heads) {
  return (E *)view.at + (head / heads) * view.batch + (head % heads) * view.head;
}

DEVICE float power(float it) { return expf(it); }
DEVICE double power(double it) { return exp(it); }
DEVICE float logarithm(float it) { return logf(it); }
DEVICE double logarithm(double it) { return log(it); }

// Some rows of a head.
struct Rows { const T *at; const View *view; i64 first, length; };

// sums[left][right] = Σ over columns; rows that there are not count as zeros. All threads come.
template <int LENGTH> DEVICE void products(Shared &shared, C (&sums)[EACH][EACH], Rows left, Rows right) {
  int across = (int)threadIdx.x % SIDE, down = (int)threadIdx.x / SIDE;
#pragma unroll
  for (int i = 0; i < EACH; ++i)
#pragma unroll
    for (int j = 0; j < EACH; ++j) sums[i][j] = 0;
  for (int begin = 0; begin < LENGTH; begin += STEP) {
    __syncthreads();
    for (int row = down; row < TILE; row += SIDE) {
      i64 column = begin + across;
      bool is_column = column < LENGTH;
      i64 l = left.first + row, r = right.first + row;
      shared.left[row][across] =
          is_column && l < left.length ? to_compute(left.at[l * left.view->row + column * left.view->column]) : C(0);
      shared.right[row][across] =
          is_column && r < right.length ? to_compute(right.at[r * right.view->row + column * right.view->column]) : C(0);
    }
    __syncthreads();
#pragma unroll
    for (int column = 0; column < STEP; ++column) {
      C a[EACH], b[EACH];
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        a[i] = shared.left[down + SIDE * i][column];
        b[i] = shared.right[across + SIDE * i][column];
      }
#pragma unroll
      for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) sums[i][j] += a[i] * b[j];
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
tonnage_attend_plain(const __grid_constant__ Sizes sizes, const __grid_constant__ View q, const __grid_constant__ View k,
                     const __grid_constant__ View v, const __grid_constant__ View grad, const __grid_constant__ View log_sums,
                     const __grid_constant__ View dots, const __grid_constant__ View to) {
  __shared__ Shared shared;
  int across = (int)threadIdx.x % SIDE, down = (int)threadIdx.x / SIDE;
  int slice = (int)(blockIdx.x % sizes.slices) * SLICE;
  i64 tile = blockIdx.x / sizes.slices % sizes.tiles, head = blockIdx.x / sizes.slices / sizes.tiles;
  const View &left_view = BY_QUERY ? q : k, &right_view = BY_QUERY ? k : q;
  const View &from_view = PART == OUTPUT ? v : PART == VALUES ? grad : right_view;
  i64 made = BY_QUERY ? sizes.rows : sizes.keys, met = BY_QUERY ? sizes.keys : sizes.rows;
  Rows left = {head_of<const T>(left_view, head, sizes.heads), &left_view, tile * TILE, made};
  Rows right = {head_of<const T>(right_view, head, sizes.heads), &right_view, 0, met};
  Rows from = {head_of<const T>(from_view, head, sizes.heads), &from_view, 0, met};
  C *all_sums = head_of<C>(log_sums, head, sizes.heads);
  const C *all_dots = head_of<const C>(dots, head, sizes.heads);
  const C scale = (C)sizes.scale, infinite = (C)__int_as_float(0x7f800000);

  C sums[EACH][OWN], largest[EACH], totals[EACH];
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
#pragma unroll
    for (int j = 0; j < OWN; ++j) sums[i][j] = 0;
    largest[i] = -infinite;
    totals[i] = 0;
  }
  // Of causal ones, the tiles that meet this one.
  i64 begin = CAUSAL && !BY_QUERY ? left.first : 0, end = met;
  if (CAUSAL && BY_QUERY && left.first + TILE < end) end = left.first + TILE;

  for (i64 first = begin; first < end; first += TILE) {
    right.first = from.first = first;
    C scores[EACH][EACH];
    products<WIDTH>(shared, scores, left, right);
    C slopes[EACH][EACH];
    if (PART == QUERIES || PART == KEYS) {
      Rows a = {head_of<const T>(grad, head, sizes.heads), &grad, BY_QUERY ? left.first : first, sizes.rows};
      Rows b = {head_of<const T>(v, head, sizes.heads), &v, BY_QUERY ? first : left.first, sizes.keys};
      if (BY_QUERY) products<DEPTH>(shared, slopes, a, b);
      else products<DEPTH>(shared, slopes, b, a);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      bool seen[EACH];
      C most = largest[i];
#pragma unroll
      for (int j = 0; j < EACH; ++j) {
        i64 l = left.first + down + SIDE * i, r = first + across + SIDE * j;
        i64 query = BY_QUERY ? l : r, key = BY_QUERY ? r : l;
        seen[j] = query < sizes.rows && key < sizes.keys && (!CAUSAL || key <= query);
        scores[i][j] *= scale;
        if (PART == OUTPUT) {
          if (seen[j] && scores[i][j] > most) most = scores[i][j];
        } else if (seen[j]) {
          C weight = power(scores[i][j] - all_sums[query * log_sums.row]);
          if (PART != VALUES) weight = weight * (slopes[i][j] - all_dots[query * dots.row]) * scale;
          scores[i][j] = weight;
        }
      }
      if (PART == OUTPUT) {
#pragma unroll
        for (int step = SIDE / 2; step > 0; step /= 2) {
          C other = __shfl_xor_sync(0xffffffffu, most, step);
          if (other > most) most = other;
        }
        C base = most == -infinite ? C(0) : most, total = 0;
        C shrink = power(largest[i] - base);
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
          scores[i][j] = power(scores[i][j] - base);
          if (seen[j]) total += scores[i][j];
        }
        totals[i] = totals[i] * shrink + total;
        largest[i] = most;
#pragma unroll
        for (int j = 0; j < OWN; ++j) sums[i][j] *= shrink;
      }
#pragma unroll
      for (int j = 0; j < EACH; ++j)
        shared.weights[down + SIDE * i][across + SIDE * j] = seen[j] ? scores[i][j] : C(0);
    }
    for (int index = (int)threadIdx.x; index < TILE * SLICE; index += THREADS) {
      int row = index / SLICE, column = index % SLICE;
      bool is_there = first + row < met && slice + column < COLUMNS;
      shared.from[row][column] =
          is_there ? to_compute(from.at[(first + row) * from.view->row + (slice + column) * from.view->column]) : C(0);
    }
    __syncthreads();
#pragma unroll 4
    for (int row = 0; row < TILE; ++row) {
      C b[OWN];
#pragma unroll
      for (int j = 0; j < OWN; ++j) b[j] = shared.from[row][across + SIDE * j];
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        C weight = shared.weights[down + SIDE * i][row];
#pragma unroll
        for (int j = 0; j < OWN; ++j) sums[i][j] += weight * b[j];
      }
    }
    // Before the next tile's weights and rows overwrite these.
    __syncthreads();
  }

  T *out = head_of<T>(to, head, sizes.heads);
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    i64 row = left.first + down + SIDE * i;
    if (PART == OUTPUT) {
#pragma unroll
      for (int step = SIDE / 2; step > 0; step /= 2) totals[i] += __shfl_xor_sync(0xffffffffu, totals[i], step);
      if (row < made && slice == 0 && across == 0 && log_sums.at != 0)
        all_sums[row * log_sums.row] = largest[i] + logarithm(totals[i]);
    }
    if (row >= made) continue;
#pragma unroll
    for (int j = 0; j < OWN; ++j) {
      int column = slice + across + SIDE * j;
      C it = PART == OUTPUT ? sums[i][j] / totals[i] : sums[i][j];
      if (column < COLUMNS) out[row * to.row + column * to.column] = from_compute<T>(it);
    }
  }
}
