// Pools over images: planes of HEIGHT × WIDTH in, of ROWS × COLUMNS out. Gradients are gathered: each element asks the
// windows that saw it, in order.

// A window along one axis, as it is given; and in the numbers that places are computed in, which are short if they can be.
struct Given { i64 size, kernel, stride, padding, dilation, places; };
struct Window {
  SIGNED size, kernel, stride, padding, dilation, places;
  DEVICE Window(const Given &it)
      : size((SIGNED)it.size), kernel((SIGNED)it.kernel), stride((SIGNED)it.stride), padding((SIGNED)it.padding),
        dilation((SIGNED)it.dilation), places((SIGNED)it.places) {}
};

// The first and the last place at which a window may see an element.
DEVICE SIGNED first_place(const Window &of, SIGNED at) {
  SIGNED reach = at + of.padding - (of.kernel - 1) * of.dilation;
  return reach <= 0 ? 0 : (reach + of.stride - 1) / of.stride;
}
DEVICE SIGNED last_place(const Window &of, SIGNED at) {
  SIGNED last = (at + of.padding) / of.stride;
  return last < of.places ? last : of.places - 1;
}

#if defined(MAX_POOL)
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_max_pool(
    IN *out, i64 *indices, const IN *in, Given of_rows, Given of_columns, u64 numel) {
  Window rows(of_rows), columns(of_columns);
  for (u64 at = global_thread(); at < numel; at += global_threads()) {
    INDEX line = (INDEX)at / (INDEX)columns.places;
    SIGNED column = (INDEX)at % (INDEX)columns.places, row = line % (INDEX)rows.places;
    const IN *plane = in + (u64)(line / (INDEX)rows.places) * (rows.size * columns.size);
    SIGNED top = row * rows.stride - rows.padding, left = column * columns.stride - columns.padding;
    SIGNED best = -1;
    C largest = 0;
    for (SIGNED i = 0; i < rows.kernel; ++i) {
      SIGNED y = top + i * rows.dilation;
      if (y < 0 || y >= rows.size) continue;
      for (SIGNED j = 0; j < columns.kernel; ++j) {
        SIGNED x = left + j * columns.dilation;
        if (x < 0 || x >= columns.size) continue;
        C it = number<C>(plane[y * columns.size + x]);
        if (best < 0 || it > largest || it != it) {
          best = y * columns.size + x;
          largest = it;
        }
      }
    }
    best = best < 0 ? 0 : best;
    indices[at] = best;
    out[at] = plane[best];
  }
}
#elif defined(MAX_POOL_GRAD)
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_max_pool_grad(
    OUT *out, const GRAD *grads, const i64 *indices, Given of_rows, Given of_columns, u64 numel) {
  Window rows(of_rows), columns(of_columns);
  for (u64 at = global_thread(); at < numel; at += global_threads()) {
    INDEX line = (INDEX)at / (INDEX)columns.size;
    SIGNED x = (INDEX)at % (INDEX)columns.size, y = line % (INDEX)rows.size;
    u64 first = (u64)(line / (INDEX)rows.size) * (rows.places * columns.places);
    SIGNED bottom = last_place(rows, y), right = last_place(columns, x), me = y * columns.size + x;
    C sum = 0;
    for (SIGNED i = first_place(rows, y); i <= bottom; ++i)
      for (SIGNED j = first_place(columns, x); j <= right; ++j) {
        u64 place = first + i * columns.places + j;
        if (indices[place] == me) sum += number<C>(grads[place]);
      }
    out[at] = Narrow<OUT>::of(sum);
  }
}
#else
// What the window at a place sees, and how many elements that counts for along the axis.
struct Seen { SIGNED begin, end, counts; };
DEVICE Seen seen(const Window &of, SIGNED place) {
  Seen it;
#if SLIDES
  SIGNED begin = place * of.stride, end = begin + of.kernel, padded = of.size + 2 * of.padding;
  end = end < padded ? end : padded;
  it.counts = end - begin;
  it.begin = begin - of.padding;
  it.end = end - of.padding;
  it.begin = it.begin < 0 ? 0 : it.begin < of.size ? it.begin : of.size;
  it.end = it.end < 0 ? 0 : it.end < of.size ? it.end : of.size;
  if (!COUNTS_PADDING) it.counts = it.end - it.begin;
#else
  it.begin = place * of.size / of.places;
  it.end = ((place + 1) * of.size + of.places - 1) / of.places;
  it.counts = it.end - it.begin;
#endif
  return it;
}

#ifdef AVG_POOL
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_avg_pool(
    IN *out, const IN *in, Given of_rows, Given of_columns, u64 numel) {
  Window rows(of_rows), columns(of_columns);
  for (u64 at = global_thread(); at < numel; at += global_threads()) {
    INDEX line = (INDEX)at / (INDEX)columns.places;
    Seen across = seen(columns, (INDEX)at % (INDEX)columns.places), down = seen(rows, line % (INDEX)rows.places);
    const IN *plane = in + (u64)(line / (INDEX)rows.places) * (rows.size * columns.size);
    C sum = 0;
    for (SIGNED y = down.begin; y < down.end; ++y)
      for (SIGNED x = across.begin; x < across.end; ++x) sum += number<C>(plane[y * columns.size + x]);
    out[at] = Narrow<IN>::of(sum / C(down.counts * across.counts));
  }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_avg_pool_grad(
    OUT *out, const GRAD *grads, Given of_rows, Given of_columns, u64 numel) {
  Window rows(of_rows), columns(of_columns);
  for (u64 at = global_thread(); at < numel; at += global_threads()) {
    INDEX line = (INDEX)at / (INDEX)columns.size;
    SIGNED x = (INDEX)at % (INDEX)columns.size, y = line % (INDEX)rows.size;
    const GRAD *plane = grads + (u64)(line / (INDEX)rows.size) * (rows.places * columns.places);
#if SLIDES
    SIGNED top = first_place(rows, y), bottom = last_place(rows, y);
    SIGNED left = first_place(columns, x), right = last_place(columns, x);
#else
    SIGNED top = y * rows.places / rows.size, bottom = ((y + 1) * rows.places + rows.size - 1) / rows.size - 1;
    SIGNED left = x * columns.places / columns.size;
    SIGNED right = ((x + 1) * columns.places + columns.size - 1) / columns.size - 1;
#endif
    C sum = 0;
    for (SIGNED i = top; i <= bottom; ++i) {
      Seen down = seen(rows, i);
      for (SIGNED j = left; j <= right; ++j)
        sum += number<C>(plane[i * columns.places + j]) / C(down.counts * seen(columns, j).counts);
    }
    out[at] = Narrow<OUT>::of(sum);
  }
}
#endif
#endif
