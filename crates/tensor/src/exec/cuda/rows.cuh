// Rows, each taken by a group of GROUP threads: one, a warp, or all THREADS of a block.

// The index of the first row that this thread helps with, and how many rows are taken at once.
DEVICE u64 first_row() { return GROUP == THREADS ? blockIdx.x : ((u64)blockIdx.x * THREADS + threadIdx.x) / GROUP; }
DEVICE u64 rows_at_once() { return (u64)gridDim.x * (THREADS / GROUP); }

// Which of the group this thread is.
DEVICE u32 member() { return threadIdx.x % GROUP; }

// What another lane has.
template <class N> DEVICE N from_lane(N it, int step) { return __shfl_xor_sync(0xffffffffu, it, step); }

// Below every number.
DEVICE float lowest() { return __int_as_float(0xff800000); }

struct adds { template <class N> DEVICE N operator()(N a, N b) const { return a + b; } };

// The larger; what is no number is not.
struct larger { template <class N> DEVICE N operator()(N a, N b) const { return b > a ? b : a; } };

// By a fixed tree. All of the group come, and all get the answer.
template <class N, class Op> DEVICE N group_reduce(N it, Op op) {
#pragma unroll
  for (int step = GROUP > 1 ? 16 : 0; step > 0; step /= 2) it = op(it, from_lane(it, step));
  if (GROUP > 32) {
    constexpr int WARPS = GROUP > 32 ? GROUP / 32 : 1;
    __shared__ N parts[WARPS];
    __syncthreads();
    if (lane() == 0) parts[warp()] = it;
    __syncthreads();
    it = parts[lane() % WARPS];
#pragma unroll
    for (int step = WARPS / 2; step > 0; step /= 2) it = op(it, from_lane(it, step));
  }
  return it;
}

// Axes of memory: where the element of an index lies.
template <int N> struct Axes { u64 sizes[N]; u64 strides[N]; };
template <class I, int N> DEVICE u64 place(const Axes<N> &axes, I index) {
  u64 at = 0;
#pragma unroll
  for (int axis = N - 1; axis > 0; --axis) {
    I size = (I)axes.sizes[axis];
    at += (u64)(index % size) * axes.strides[axis];
    index /= size;
  }
  return at + (u64)index * axes.strides[0];
}

// A number of a pack, as it is computed with.
template <class N, class E> DEVICE N number(E it) { return Wide<N>::of(widen(it)); }

// Numbers that lie side by side, moved by 16 bytes where there are more.
template <class N, int COUNT, class E> DEVICE void read_numbers(const E *from, N (&to)[COUNT]) {
  constexpr int STEP = COUNT * (int)sizeof(E) > 16 ? 16 / (int)sizeof(E) : COUNT;
#pragma unroll
  for (int i = 0; i < COUNT; i += STEP) {
    pack<E, STEP> read = load_pack<STEP>(from + i);
#pragma unroll
    for (int j = 0; j < STEP; ++j) to[i + j] = number<N>(read.at[j]);
  }
}

#ifdef ITEMS
// Calls `f` with each pack of a row that is this thread's: with the number of the register it is kept in, and its place.
template <class F> DEVICE void each_pack(u32 packs, F f) {
#if ITEMS > 0
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    u32 at = member() + i * GROUP;
    if (at < packs) f(i, at);
  }
#else
#pragma unroll 2
  for (u32 at = member(); at < packs; at += GROUP) f(0, at);
#endif
}

// A row of memory: kept in registers if it fits, otherwise read each time.
template <class E> struct Row {
  const E *from;
#if ITEMS > 0
  pack<E, PACK> kept[ITEMS];
  DEVICE void read(const E *row, u32 packs) {
    from = row;
    each_pack(packs, [&](int i, u32 at) { kept[i] = load_pack<PACK>(from + (u64)at * PACK); });
  }
  DEVICE const pack<E, PACK> &get(int i, u32) const { return kept[i]; }
#else
  DEVICE void read(const E *row, u32) { from = row; }
  DEVICE pack<E, PACK> get(int, u32 at) const { return load_pack<PACK>(from + (u64)at * PACK); }
#endif
};
#endif
