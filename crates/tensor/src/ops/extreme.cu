// The extremes of rows in any layout, and where they are. What is no number wins, and of equals the first.

#ifdef PUTS
// Each gradient goes where its extreme was.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_put_rows(
    OUT *out, const OUT *grads, const i64 *places, const __grid_constant__ Axes<KEPT> kept,
    const __grid_constant__ Axes<ALONG> along, const __grid_constant__ Axes<GRADS> of_grads,
    const __grid_constant__ Axes<PLACES> of_places, u64 rows) {
  for (u64 row = global_thread(); row < rows; row += global_threads()) {
    i64 at = places[place(of_places, (INDEX)row)];
    out[place(kept, (INDEX)row) + place(along, (INDEX)at)] = grads[place(of_grads, (INDEX)row)];
  }
}
#else
struct Found { C value; u64 at; };
DEVICE Found from_lane(Found it, int step) {
  Found other = {from_lane(it.value, step), from_lane(it.at, step)};
  return other;
}
DEVICE bool is_number(C it) { return it == it; }

// Places beyond every row are those of nothing.
struct better {
  DEVICE Found operator()(Found a, Found b) const {
    if (b.at >= NOTHING) return a;
    if (a.at >= NOTHING) return b;
    bool a_counts = is_number(a.value), b_counts = is_number(b.value);
    bool is_equal = a_counts == b_counts && (!a_counts || a.value == b.value);
    if (is_equal) return b.at < a.at ? b : a;
    if (a_counts != b_counts) return a_counts ? b : a;
    return (MAX ? b.value > a.value : b.value < a.value) ? b : a;
  }
  static constexpr u64 NOTHING = ~0ULL;
};

extern "C" __global__ void __launch_bounds__(THREADS) tonnage_extreme_rows(
    IN *values, i64 *places, const IN *in, const __grid_constant__ Axes<KEPT> kept, const __grid_constant__ Axes<ALONG> along,
    u64 rows, u64 width) {
  u64 packs = width / PACK;
  for (u64 row = first_row(); row < rows; row += rows_at_once()) {
    const IN *from = in + place(kept, (INDEX)row);
    Found best = {C(0), better::NOTHING};
#pragma unroll 4
    for (u64 at = member(); at < packs; at += GROUP) {
      pack<IN, PACK> read = load_pack<PACK>(from + place(along, (INDEX)(at * PACK)));
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        Found next = {number<C>(read.at[j]), at * PACK + j};
        best = better()(best, next);
      }
    }
    best = group_reduce(best, better());
    if (member() == 0) {
      if (HAS_VALUES) values[row] = from[place(along, (INDEX)best.at)];
      if (HAS_PLACES) places[row] = (i64)best.at;
    }
  }
}
#endif
