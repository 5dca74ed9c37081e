// Attention of 16-bit floats on tensor cores: forward, the gradient of queries, the gradients of keys and values.
//
// Given: T, KIND ("bf16" or "f16"), WIDTH and DEPTH of a head (1 to 128), CAUSAL, PACKED (inputs can be copied in packs of
// 16 bytes), PAIRED (outputs can be written in pairs), and PART: which of the three this program is.
//
// A warp has 16 rows of what a block makes (times TILES), and all of its columns, as products of 16×8×16. Sums are in f32 and
// stay in registers; tiles of the other side stream through shared memory, the next one on its way while one is worked
// on. The scores that a product leaves in registers lie there as the next product takes them.

#define FORWARD 0
#define QUERIES 1
#define KEYS_AND_VALUES 2

// Rows of memory: strides in elements.
struct View { u64 at; i64 batch, head, row, column; };
struct Sizes { i64 heads, rows, keys; float scale; u32 tiles; };

constexpr float LOG2E = 1.44269504088896340736f;
#define INFINITE __int_as_float(0x7f800000)
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int W_STEPS = (WIDTH + 15) / 16, D_STEPS = (DEPTH + 15) / 16;
constexpr int STEPS = W_STEPS > D_STEPS ? W_STEPS : D_STEPS;
constexpr bool IS_LONG = STEPS > 4;
// Packs of 16 bytes in a row of shared memory, a power of two.
constexpr int PACKS = IS_LONG ? 16 : 8;
constexpr int ROW_BYTES = 16 * PACKS;
constexpr int TILES = PART == FORWARD && !IS_LONG ? 2 : 1;
// Rows that a block makes, and rows of the other side that it meets at once.
constexpr int MADE = WARPS * 16 * TILES;
constexpr int MET = IS_LONG ? 32 : 64;
constexpr int PAIRS = MET / 16;
constexpr int STAGE_BYTES = 2 * MET * ROW_BYTES;

template <typename E> DEVICE E *head_of(const View &view, i64 head, i64 heads) {
  return (E *)view.at + (head / heads) * view.batch + (head % heads) * view.head;
}

DEVICE u32 shared_address(const void *at) { return (u32)__cvta_generic_to_shared(at); }

// Where a pack lies in a tile: shuffled, so that 8 rows of one column lie in different banks.
DEVICE u32 place(int row, int pack) { return (u32)(row * PACKS + (pack ^ (row & 7))) * 16; }

DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void arrived() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Starts copying rows first… of a head into a tile; rows and columns that there are not become zeros.
template <int ROWS, int COLUMNS>
DEVICE void copy_tile(u8 *tile, const T *from, const View &view, i64 first, i64 length) {
  constexpr int ACROSS = (COLUMNS + 15) / 16 * 2;
#pragma unroll
  for (int it = 0; it < (ROWS * ACROSS + THREADS - 1) / THREADS; ++it) {
    int index = it * THREADS + (int)threadIdx.x;
    int row = index / ACROSS, pack_ = index % ACROSS;
    if ((ROWS * ACROSS) % THREADS != 0 && row >= ROWS) break;
    bool is_there = first + row < length;
#if PACKED
    is_there = is_there && pack_ * 8 < COLUMNS;
    const T *source = is_there ? from + (first + row) * view.row + pack_ * 8 : from;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(tile) + place(row, pack_)), "l"(source), "r"(is_there ? 16 : 0) : "memory");
#else
    pack<T, 8> it8;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      int column = pack_ * 8 + e;
      it8.at[e].bits = 0;
      if (is_there && column < COLUMNS) it8.at[e] = from[(first + row) * view.row + column * view.column];
    }
    *(uint4 *)(tile + place(row, pack_)) = it8.raw;
#endif
  }
}

// Starts copying a number for each row.
DEVICE void copy_numbers(float *to, const float *from, i64 stride, i64 first, i64 length) {
  for (int row = (int)threadIdx.x; row < MET; row += THREADS) {
    bool is_there = first + row < length;
    const float *source = is_there ? from + (first + row) * stride : from;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(shared_address(to + row)), "l"(source), "r"(is_there ? 4 : 0) : "memory");
  }
}

DEVICE void load4(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
DEVICE void load4_turned(u32 (&to)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

// The left factor: 16 rows from `row`, 16 columns of step `step`.
DEVICE void load_left(u32 (&to)[4], const u8 *tile, int row, int step) {
  int l = (int)lane();
  load4(to, shared_address(tile) + place(row + (l & 15), 2 * step + (l >> 4)));
}
// The right factor, whose columns are 16 rows of a tile: two of 8, {0, 1} and {2, 3}.
DEVICE void load_right(u32 (&to)[4], const u8 *tile, int row, int step) {
  int l = (int)lane();
  load4(to, shared_address(tile) + place(row + (l & 7) + ((l >> 4) << 3), 2 * step + ((l >> 3) & 1)));
}
// The right factor, whose rows are 16 rows of a tile and whose columns are 16 of its columns.
DEVICE void load_right_turned(u32 (&to)[4], const u8 *tile, int row, int step) {
  int l = (int)lane();
  load4_turned(to, shared_address(tile) + place(row + (l & 15), 2 * step + (l >> 4)));
}

DEVICE void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers side by side, the first in the lower half.
DEVICE u32 pair(float first, float second) {
  u32 both;
  asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

DEVICE float power_of_two(float it) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(it));
  return power;
}

// Sums as a left factor: step `step` of 16 columns.
DEVICE void as_left(u32 (&to)[4], const float (&sums)[2 * PAIRS][4], int step) {
  to[0] = pair(sums[2 * step][0], sums[2 * step][1]);
  to[1] = pair(sums[2 * step][2], sums[2 * step][3]);
  to[2] = pair(sums[2 * step + 1][0], sums[2 * step + 1][1]);
  to[3] = pair(sums[2 * step + 1][2], sums[2 * step + 1][3]);
}

// sums = left · tileᵀ
template <int LENGTH>
DEVICE void scores(float (&sums)[2 * PAIRS][4], const u32 (&left)[LENGTH][4], const u8 *tile) {
#pragma unroll
  for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[n][e] = 0;
#pragma unroll
  for (int k = 0; k < LENGTH; ++k)
#pragma unroll
    for (int n = 0; n < PAIRS; ++n) {
      u32 right[4];
      load_right(right, tile, 16 * n, k);
      multiply(sums[2 * n], left[k], right[0], right[1]);
      multiply(sums[2 * n + 1], left[k], right[2], right[3]);
    }
}

// The same, with the left factor in shared memory.
template <int LENGTH>
DEVICE void scores_from(float (&sums)[2 * PAIRS][4], const u8 *left_tile, int row, const u8 *tile) {
#pragma unroll
  for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[n][e] = 0;
#pragma unroll
  for (int k = 0; k < LENGTH; ++k) {
    u32 left[4];
    load_left(left, left_tile, row, k);
#pragma unroll
    for (int n = 0; n < PAIRS; ++n) {
      u32 right[4];
      load_right(right, tile, 16 * n, k);
      multiply(sums[2 * n], left, right[0], right[1]);
      multiply(sums[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// sums += weights · tile
template <int LENGTH>
DEVICE void add_products(float (&sums)[2 * LENGTH][4], const u32 (&weights)[PAIRS][4], const u8 *tile) {
#pragma unroll
  for (int k = 0; k < PAIRS; ++k)
#pragma unroll
    for (int n = 0; n < LENGTH; ++n) {
      u32 right[4];
      load_right_turned(right, tile, 16 * k, n);
      multiply(sums[2 * n], weights[k], right[0], right[1]);
      multiply(sums[2 * n + 1], weights[k], right[2], right[3]);
    }
}

DEVICE int at_most(i64 it, int most) { return it < most ? (int)it : most; }

// Whether any of 16 queries does not see any of the keys of a tile: `keys_left` of them are there, and the first query
// is `lead` after the first key.
DEVICE bool is_cut(int keys_left, int lead) { return keys_left < MET || (CAUSAL && lead + 1 < MET); }

// Whether of a tile of scores, queries by keys, this one is between a query and a key that it does not see.
DEVICE bool is_unseen(int n, int e, int keys_left, int lead) {
  int l = (int)lane(), key = 8 * n + 2 * (l & 3) + (e & 1), query = (l >> 2) + 8 * (e >> 1);
  return key >= keys_left || (CAUSAL && key > lead + query);
}

template <int LENGTH> DEVICE void clear(float (&sums)[LENGTH][4]) {
#pragma unroll
  for (int n = 0; n < LENGTH; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[n][e] = 0;
}

// Writes 16 rows from `first`, each half of them times its factor.
template <int LENGTH, int COLUMNS>
DEVICE void store(T *to, const View &view, i64 first, i64 length, const float (&sums)[LENGTH][4], float upper, float lower) {
  int l = (int)lane();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    i64 row = first + (l >> 2) + 8 * half;
    if (row >= length) continue;
    T *line = to + row * view.row;
    float factor = half ? lower : upper;
#pragma unroll
    for (int n = 0; n < LENGTH; ++n) {
      int column = 8 * n + 2 * (l & 3);
      float a = sums[n][2 * half] * factor, b = sums[n][2 * half + 1] * factor;
#if PAIRED
      if (column < COLUMNS) *(u32 *)(line + column) = pair(a, b);
#else
      if (column < COLUMNS) line[column * view.column] = from_f32<T>(a);
      if (column + 1 < COLUMNS) line[(column + 1) * view.column] = from_f32<T>(b);
#endif
    }
  }
}

#if PART == FORWARD

// log_sums may be nowhere.
extern "C" __global__ void __launch_bounds__(THREADS)
tonnage_attend(const __grid_constant__ Sizes sizes, const __grid_constant__ View q, const __grid_constant__ View k,
               const __grid_constant__ View v, const __grid_constant__ View output, const __grid_constant__ View log_sums) {
  static_assert(MADE * ROW_BYTES <= STAGE_BYTES, "queries pass through a stage");
  __shared__ __align__(128) u8 stages[2][STAGE_BYTES];
  i64 head = blockIdx.x / sizes.tiles;
  // Of causal ones, those with most work first.
  i64 first = (i64)(sizes.tiles - 1 - blockIdx.x % sizes.tiles) * MADE;
  const T *from_q = head_of<T>(q, head, sizes.heads), *from_k = head_of<T>(k, head, sizes.heads);
  const T *from_v = head_of<T>(v, head, sizes.heads);
  i64 seen = sizes.keys;
  if (CAUSAL && first + MADE < seen) seen = first + MADE;
  int count = (int)((seen + MET - 1) / MET);

  copy_tile<MADE, WIDTH>(stages[1], from_q, q, first, sizes.rows);
  copy_tile<MET, WIDTH>(stages[0], from_k, k, 0, sizes.keys);
  copy_tile<MET, DEPTH>(stages[0] + MET * ROW_BYTES, from_v, v, 0, sizes.keys);
  commit();
  arrived();
  __syncthreads();
  u32 queries[TILES][W_STEPS][4];
  int mine = (int)warp() * 16 * TILES, l = (int)lane();
#pragma unroll
  for (int m = 0; m < TILES; ++m)
#pragma unroll
    for (int step = 0; step < W_STEPS; ++step) load_left(queries[m][step], stages[1], mine + 16 * m, step);

  float sums[TILES][2 * D_STEPS][4], largest[TILES][2], totals[TILES][2];
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
    clear(sums[m]);
    largest[m][0] = largest[m][1] = -INFINITE;
    totals[m][0] = totals[m][1] = 0;
  }
  float scale = sizes.scale * LOG2E;

  for (int tile = 0; tile < count; ++tile) {
    arrived();
    __syncthreads();
    if (tile + 1 < count) {
      u8 *next = stages[(tile + 1) & 1];
      copy_tile<MET, WIDTH>(next, from_k, k, (i64)(tile + 1) * MET, sizes.keys);
      copy_tile<MET, DEPTH>(next + MET * ROW_BYTES, from_v, v, (i64)(tile + 1) * MET, sizes.keys);
    }
    commit();
    const u8 *keys = stages[tile & 1], *values = keys + MET * ROW_BYTES;
    i64 first_key = (i64)tile * MET;
    u32 weights[TILES][PAIRS][4];
    float products[TILES][2 * PAIRS][4];
#pragma unroll
    for (int m = 0; m < TILES; ++m) clear(products[m]);
#pragma unroll
    for (int step = 0; step < W_STEPS; ++step)
#pragma unroll
      for (int n = 0; n < PAIRS; ++n) {
        u32 right[4];
        load_right(right, keys, 16 * n, step);
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          multiply(products[m][2 * n], queries[m][step], right[0], right[1]);
          multiply(products[m][2 * n + 1], queries[m][step], right[2], right[3]);
        }
      }
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      int keys_left = at_most(sizes.keys - first_key, MET), lead = at_most(first + mine + 16 * m - first_key, MET);
      if (is_cut(keys_left, lead)) {
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (is_unseen(n, e, keys_left, lead)) products[m][n][e] = -INFINITE;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = largest[m][half];
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n)
          most = fmaxf(most, fmaxf(products[m][n][2 * half], products[m][n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        float base = most == -INFINITE ? 0.0f : most * scale;
        float shrink = power_of_two(largest[m][half] * scale - base);
        largest[m][half] = most;
        float total = 0;
#pragma unroll
        for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            products[m][n][e] = power_of_two(fmaf(products[m][n][e], scale, -base));
            total += products[m][n][e];
          }
        totals[m][half] = totals[m][half] * shrink + total;
#pragma unroll
        for (int n = 0; n < 2 * D_STEPS; ++n) {
          sums[m][n][2 * half] *= shrink;
          sums[m][n][2 * half + 1] *= shrink;
        }
      }
#pragma unroll
      for (int step = 0; step < PAIRS; ++step) as_left(weights[m][step], products[m], step);
    }
#pragma unroll
    for (int step = 0; step < PAIRS; ++step)
#pragma unroll
      for (int n = 0; n < D_STEPS; ++n) {
        u32 right[4];
        load_right_turned(right, values, 16 * step, n);
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          multiply(sums[m][2 * n], weights[m][step], right[0], right[1]);
          multiply(sums[m][2 * n + 1], weights[m][step], right[2], right[3]);
        }
      }
  }

  T *to = head_of<T>(output, head, sizes.heads);
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float &total = totals[m][half];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
    }
    i64 row = first + mine + 16 * m;
    store<2 * D_STEPS, DEPTH>(to, output, row, sizes.rows, sums[m], 1.0f / totals[m][0], 1.0f / totals[m][1]);
    if (log_sums.at != 0 && (l & 3) == 0) {
      float *to_sums = head_of<float>(log_sums, head, sizes.heads);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        i64 at = row + (l >> 2) + 8 * half;
        if (at < sizes.rows) to_sums[at * log_sums.row] = largest[m][half] * sizes.scale + logf(totals[m][half]);
      }
    }
  }
}

#elif PART == QUERIES

extern "C" __global__ void __launch_bounds__(THREADS)
tonnage_attend_grad_queries(const __grid_constant__ Sizes sizes, const __grid_constant__ View q, const __grid_constant__ View k,
                            const __grid_constant__ View v, const __grid_constant__ View grad,
                            const __grid_constant__ View log_sums, const __grid_constant__ View dots,
                            const __grid_constant__ View to_queries) {
  static_assert(MADE * ROW_BYTES <= STAGE_BYTES, "queries pass through a stage");
  __shared__ __align__(128) u8 stages[2][STAGE_BYTES];
  i64 head = blockIdx.x / sizes.tiles;
  i64 first = (i64)(sizes.tiles - 1 - blockIdx.x % sizes.tiles) * MADE;
  const T *from_q = head_of<T>(q, head, sizes.heads), *from_k = head_of<T>(k, head, sizes.heads);
  const T *from_v = head_of<T>(v, head, sizes.heads), *from_grad = head_of<T>(grad, head, sizes.heads);
  i64 seen = sizes.keys;
  if (CAUSAL && first + MADE < seen) seen = first + MADE;
  int count = (int)((seen + MET - 1) / MET);
  int mine = (int)warp() * 16, l = (int)lane();

  copy_tile<MET, WIDTH>(stages[0], from_k, k, 0, sizes.keys);
  copy_tile<MET, DEPTH>(stages[0] + MET * ROW_BYTES, from_v, v, 0, sizes.keys);
  copy_tile<MADE, WIDTH>(stages[1], from_q, q, first, sizes.rows);
  commit();
  arrived();
  __syncthreads();
  u32 queries[W_STEPS][4], grads[D_STEPS][4];
#pragma unroll
  for (int step = 0; step < W_STEPS; ++step) load_left(queries[step], stages[1], mine, step);
  __syncthreads();
  copy_tile<MADE, DEPTH>(stages[1], from_grad, grad, first, sizes.rows);
  commit();
  arrived();
  __syncthreads();
#pragma unroll
  for (int step = 0; step < D_STEPS; ++step) load_left(grads[step], stages[1], mine, step);

  float log_sum[2], dot[2];
  const float *from_sums = head_of<float>(log_sums, head, sizes.heads), *from_dots = head_of<float>(dots, head, sizes.heads);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    i64 row = first + mine + (l >> 2) + 8 * half;
    bool is_there = row < sizes.rows;
    log_sum[half] = is_there ? from_sums[row * log_sums.row] * LOG2E : 0;
    dot[half] = is_there ? from_dots[row * dots.row] : 0;
  }
  float sums[2 * W_STEPS][4];
  clear(sums);
  float scale = sizes.scale * LOG2E;

  for (int tile = 0; tile < count; ++tile) {
    arrived();
    __syncthreads();
    if (tile + 1 < count) {
      u8 *next = stages[(tile + 1) & 1];
      copy_tile<MET, WIDTH>(next, from_k, k, (i64)(tile + 1) * MET, sizes.keys);
      copy_tile<MET, DEPTH>(next + MET * ROW_BYTES, from_v, v, (i64)(tile + 1) * MET, sizes.keys);
    }
    commit();
    const u8 *keys = stages[tile & 1], *values = keys + MET * ROW_BYTES;
    i64 first_key = (i64)tile * MET;
    float products[2 * PAIRS][4], slopes[2 * PAIRS][4];
    scores(products, queries, keys);
    scores(slopes, grads, values);
    int keys_left = at_most(sizes.keys - first_key, MET), lead = at_most(first + mine - first_key, MET);
    bool cut = is_cut(keys_left, lead);
#pragma unroll
    for (int n = 0; n < 2 * PAIRS; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float weight = power_of_two(fmaf(products[n][e], scale, -log_sum[e >> 1]));
        slopes[n][e] = weight * (slopes[n][e] - dot[e >> 1]);
        if (cut && is_unseen(n, e, keys_left, lead)) slopes[n][e] = 0;
      }
    u32 weights[PAIRS][4];
#pragma unroll
    for (int step = 0; step < PAIRS; ++step) as_left(weights[step], slopes, step);
    add_products<W_STEPS>(sums, weights, keys);
  }
  T *to = head_of<T>(to_queries, head, sizes.heads);
  store<2 * W_STEPS, WIDTH>(to, to_queries, first + mine, sizes.rows, sums, sizes.scale, sizes.scale);
}

#else

// Long rows leave no registers for values, which stay in shared memory, nor memory for a second stage.
constexpr int STAGES = IS_LONG ? 1 : 2;

extern "C" __global__ void __launch_bounds__(THREADS)
tonnage_attend_grad_keys(const __grid_constant__ Sizes sizes, const __grid_constant__ View q, const __grid_constant__ View k,
                         const __grid_constant__ View v, const __grid_constant__ View grad,
                         const __grid_constant__ View log_sums, const __grid_constant__ View dots,
                         const __grid_constant__ View to_keys, const __grid_constant__ View to_values) {
  __shared__ __align__(128) u8 stages[2][STAGE_BYTES];
  __shared__ __align__(16) float numbers[STAGES][2][MET];
  i64 head = blockIdx.x / sizes.tiles;
  i64 first = (i64)(blockIdx.x % sizes.tiles) * MADE;
  const T *from_q = head_of<T>(q, head, sizes.heads), *from_k = head_of<T>(k, head, sizes.heads);
  const T *from_v = head_of<T>(v, head, sizes.heads), *from_grad = head_of<T>(grad, head, sizes.heads);
  const float *from_sums = head_of<float>(log_sums, head, sizes.heads), *from_dots = head_of<float>(dots, head, sizes.heads);
  int mine = (int)warp() * 16, l = (int)lane();

  // The last of the two is for values, if they stay in shared memory.
  copy_tile<MADE, WIDTH>(stages[0], from_k, k, first, sizes.keys);
  copy_tile<MADE, DEPTH>(stages[1], from_v, v, first, sizes.keys);
  commit();
  arrived();
  __syncthreads();
  u32 keys[W_STEPS][4], values[STAGES == 2 ? D_STEPS : 1][4];
#pragma unroll
  for (int step = 0; step < W_STEPS; ++step) load_left(keys[step], stages[0], mine, step);
  if constexpr (STAGES == 2) {
#pragma unroll
    for (int step = 0; step < D_STEPS; ++step) load_left(values[step], stages[1], mine, step);
  }
  __syncthreads();

  float sums_k[2 * W_STEPS][4], sums_v[2 * D_STEPS][4];
  clear(sums_k);
  clear(sums_v);
  float scale = sizes.scale * LOG2E;
  // The first tile of queries of which any sees any of these keys.
  i64 start = CAUSAL ? first / MET : 0, end = (sizes.rows + MET - 1) / MET;
  auto fetch = [&](i64 tile, int stage) {
    copy_tile<MET, WIDTH>(stages[stage], from_q, q, tile * MET, sizes.rows);
    copy_tile<MET, DEPTH>(stages[stage] + MET * ROW_BYTES, from_grad, grad, tile * MET, sizes.rows);
    copy_numbers(numbers[stage][0], from_sums, log_sums.row, tile * MET, sizes.rows);
    copy_numbers(numbers[stage][1], from_dots, dots.row, tile * MET, sizes.rows);
  };
  if (start < end) fetch(start, 0);
  commit();

  for (i64 tile = start; tile < end; ++tile) {
    int stage = STAGES == 2 ? (int)((tile - start) & 1) : 0;
    arrived();
    __syncthreads();
    if (STAGES == 2 && tile + 1 < end) fetch(tile + 1, stage ^ 1);
    commit();
    const u8 *queries = stages[stage], *grads = queries + MET * ROW_BYTES;
    i64 first_query = tile * MET;
    // How far the first key is after the first query. Of 16 keys, the last is seen by the fewest queries.
    int lead = at_most(first + mine - first_query, MET);
    bool cut = CAUSAL && lead + 15 > 0;
    float products[2 * PAIRS][4];
    u32 weights[PAIRS][4];
    scores(products, keys, queries);
#pragma unroll
    for (int n = 0; n < 2 * PAIRS; ++n) {
      int query = 8 * n + 2 * (l & 3);
      float2 both = *(const float2 *)&numbers[stage][0][query];
      float log_sum[2] = {both.x * LOG2E, both.y * LOG2E};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        products[n][e] = power_of_two(fmaf(products[n][e], scale, -log_sum[e & 1]));
        if (cut && lead + (l >> 2) + 8 * (e >> 1) > query + (e & 1)) products[n][e] = 0;
      }
    }
#pragma unroll
    for (int step = 0; step < PAIRS; ++step) as_left(weights[step], products, step);
    add_products<D_STEPS>(sums_v, weights, grads);
    float slopes[2 * PAIRS][4];
    if constexpr (STAGES == 2) scores(slopes, values, grads);
    else scores_from<D_STEPS>(slopes, stages[1], mine, grads);
#pragma unroll
    for (int n = 0; n < 2 * PAIRS; ++n) {
      float2 dot = *(const float2 *)&numbers[stage][1][8 * n + 2 * (l & 3)];
#pragma unroll
      for (int e = 0; e < 4; ++e) slopes[n][e] = products[n][e] * (slopes[n][e] - (e & 1 ? dot.y : dot.x));
    }
#pragma unroll
    for (int step = 0; step < PAIRS; ++step) as_left(weights[step], slopes, step);
    add_products<W_STEPS>(sums_k, weights, queries);
    if (STAGES == 1 && tile + 1 < end) {
      __syncthreads();
      fetch(tile + 1, 0);
      commit();
    }
  }
  T *to_k = head_of<T>(to_keys, head, sizes.heads), *to_v = head_of<T>(to_values, head, sizes.heads);
  store<2 * W_STEPS, WIDTH>(to_k, to_keys, first + mine, sizes.keys, sums_k, sizes.scale, sizes.scale);
  store<2 * D_STEPS, DEPTH>(to_v, to_values, first + mine, sizes.keys, sums_v, 1.0f, 1.0f);
}

#endif
