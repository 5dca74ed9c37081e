// Elements by index. T is stored, C computed in, I the type of indices; layouts with no axes are in order.

template <int Axes> struct Layout { u64 sizes[Axes]; u64 strides[Axes]; };
template <> struct Layout<0> { u64 none; };

// Where an element lies, by its index.
template <int Axes> DEVICE u64 place(u64 index, const Layout<Axes> &layout) {
  u64 at = 0;
#pragma unroll
  for (int axis = Axes - 1; axis >= 0; --axis) {
    at += index % layout.sizes[axis] * layout.strides[axis];
    index /= layout.sizes[axis];
  }
  return at;
}
template <> DEVICE u64 place<0>(u64 index, const Layout<0> &) { return index; }

// A wrong index and where it is, in one number: 32 bits each.
DEVICE void report(Failure *failure, u32 ticket, i64 index, u64 at) {
  i64 low = index > 2147483647LL ? 2147483647LL : index < -2147483648LL ? -2147483648LL : index;
  fail(failure, ticket, (i64)(at << 32 | (u64)(u32)(int)low));
}

#ifdef SELECT
// to[o, k, i] = from[o, indices[k], i], PACK elements at once.
extern "C" __global__ void __launch_bounds__(256) tonnage_select(
    T *to, const T *from, const I *indices, u64 n, u64 size, u64 inner, u64 count,
    const __grid_constant__ Layout<XAXES> lies, const __grid_constant__ Layout<IAXES> listed, Failure *failure, u32 ticket) {
  for (u64 first = global_thread() * PACK; first < n; first += global_threads() * PACK) {
    u64 row = first / inner, column = first % inner, k = row % count, outer = row / count;
    i64 index = indices[place(k, listed)];
    if (index < 0 || (u64)index >= size) {
      if (outer == 0 && column == 0) report(failure, ticket, index, k);
      continue;
    }
    u64 at = place((outer * size + (u64)index) * inner + column, lies);
    pack<T, PACK> p = load_pack<PACK>(from + at);
#if CONJ
#pragma unroll
    for (int j = 0; j < PACK; ++j) p.at[j] = conj(p.at[j]);
#endif
    store_pack<PACK>(to + first, p);
  }
}
#endif

#ifdef GATHER
struct Walk { u64 sizes[AXES]; u64 from[AXES]; u64 listed[AXES]; };

// to[…, k, …] = from[…, indices[…, k, …], …]: along the axis, `from` in the walk is zero.
extern "C" __global__ void __launch_bounds__(256) tonnage_gather(
    T *to, const T *from, const I *indices, u64 n, u64 size, u64 stride, const __grid_constant__ Walk walk,
    Failure *failure, u32 ticket) {
  for (u64 element = global_thread(); element < n; element += global_threads()) {
    u64 rest = element, at = 0, where = 0;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      u64 index = rest % walk.sizes[axis];
      rest /= walk.sizes[axis];
      at += index * walk.from[axis];
      where += index * walk.listed[axis];
    }
    i64 index = indices[where];
    if (index < 0 || (u64)index >= size) report(failure, ticket, index, element);
    else to[element] = from[at + (u64)index * stride];
  }
}
#endif

#ifdef SCATTER
struct Walk { u64 sizes[AXES]; u64 to[AXES]; u64 from[AXES]; u64 listed[AXES]; u64 order[AXES]; };

// to[…, indices[…, k, …], …] += from[…, k, …], along lines that do not meet, each in the order of k: by a thread, or by
// a warp that takes 32 at once and adds those that meet in their order. The walk is over all axes but the one.
extern "C" __global__ void __launch_bounds__(256) tonnage_scatter_add(
    T *to, const S *from, const I *indices, u64 lines, u64 length, u64 size, u64 to_stride, u64 from_stride,
    u64 listed_stride, u64 order_stride, const __grid_constant__ Walk walk, Failure *failure, u32 ticket) {
  const u32 LANES = BY_WARP ? 32 : 1;
  for (u64 line = global_thread() / LANES; line < lines; line += global_threads() / LANES) {
    u64 rest = line, target = 0, source = 0, list = 0, order = 0;
#pragma unroll
    for (int axis = AXES - 1; axis >= 0; --axis) {
      u64 index = rest % walk.sizes[axis];
      rest /= walk.sizes[axis];
      target += index * walk.to[axis];
      source += index * walk.from[axis];
      list += index * walk.listed[axis];
      order += index * walk.order[axis];
    }
    for (u64 first = 0; first < length; first += LANES) {
      u64 k = first + (BY_WARP ? lane() : 0);
      i64 index = -1;
      C value = C(0);
      if (k < length) {
        index = indices[list + k * listed_stride];
        if (index < 0 || (u64)index >= size) {
          report(failure, ticket, index, order + k * order_stride);
          index = -1;
        } else {
          value = widen(Narrow<T>::of(READ(from[source + k * from_stride])));
        }
      }
      T *at = to + target + (u64)(index < 0 ? 0 : index) * to_stride;
#if BY_WARP
      u32 alike = __match_any_sync(0xffffffffu, index);
      bool leads = index >= 0 && lane() == (u32)(__ffs(alike) - 1);
      T sum;
      if (leads) sum = *at;
      u32 left = leads ? alike : 0;
      while (__any_sync(0xffffffffu, left != 0)) {
        int other = left ? __ffs(left) - 1 : (int)lane();
        C added = shuffle(value, other);
        if (left) sum = Narrow<T>::of(widen(sum) + added);
        left &= left - 1;
      }
      if (leads) *at = sum;
      __syncwarp();
#else
      if (index >= 0) *at = Narrow<T>::of(widen(*at) + value);
#endif
    }
  }
}
#endif

#ifdef ADD_AT
struct Alpha { double re, im; i64 whole; };

// to[o, indices[k], i] += alpha · from[o, k, i], in the order of k, for all but `skip`. Of the rows of the target, or of the
// indices if they are fewer, each has a warp for every COLUMNS columns; of several equal indices, the first one's adds all.
#define COLUMNS (32 * VEC * PACKS)
extern "C" __global__ void __launch_bounds__(256) tonnage_add_at(
    T *to, const S *from, const I *indices, u64 outers, u64 size, u64 inner, u64 count, i64 skip,
    const __grid_constant__ Alpha given, const __grid_constant__ Layout<XAXES> lies,
    const __grid_constant__ Layout<IAXES> listed, Failure *failure, u32 ticket) {
  const C alpha = ALPHA;
  u64 pieces = (inner + COLUMNS - 1) / COLUMNS, candidates = BY_ROW ? size : count;
  u64 job = global_thread() / 32;
  if (job >= outers * candidates * pieces) return;
  u64 piece = job % pieces, candidate = job / pieces % candidates, outer = job / pieces / candidates;
  i64 target = (i64)candidate;
  u64 start = 0;
  if (!BY_ROW) {
    target = indices[place(candidate, listed)];
    if (target < 0 || (u64)target >= size) {
      if (lane() == 0 && piece == 0 && outer == 0) report(failure, ticket, target, candidate);
      return;
    }
    for (u64 base = 0; base < candidate; base += 128) {
      bool met = false;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        u64 k = base + 32 * j + lane();
        if (k < candidate) met |= indices[place(k, listed)] == target;
      }
      if (__any_sync(0xffffffffu, met)) return;
    }
    start = candidate;
  }
  // Of rows, the first one's warp looks at every index, also if it adds nothing.
  bool looks = BY_ROW && candidate == 0 && piece == 0 && outer == 0;
  if (target == skip && !looks) return;
  u64 column = piece * COLUMNS + lane() * VEC;
  T *row = to + (outer * size + (u64)target) * inner + column;
  C sums[PACKS * VEC];
  bool is_met = false;
  for (u64 base = start / 128 * 128; base < count; base += 128) {
    i64 met[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u64 k = base + 32 * j + lane();
      met[j] = k >= start && k < count ? (i64)indices[place(k, listed)] : -1;
      if (looks && k < count && (met[j] < 0 || (u64)met[j] >= size)) report(failure, ticket, met[j], k);
    }
    if (target == skip) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u32 here = __ballot_sync(0xffffffffu, met[j] == target);
      while (here) {
        if (!is_met) {
          is_met = true;
#pragma unroll
          for (int p = 0; p < PACKS; ++p) {
            if (column + p * 32 * VEC >= inner) continue;
            pack<T, VEC> was = load_pack<VEC>(row + p * 32 * VEC);
#pragma unroll
            for (int v = 0; v < VEC; ++v) sums[p * VEC + v] = widen(was.at[v]);
          }
        }
        // Two at once, so that their loads overlap.
        u64 one = base + 32 * j + (u64)(__ffs(here) - 1);
        here &= here - 1;
        bool is_pair = here != 0;
        u64 two = is_pair ? base + 32 * j + (u64)(__ffs(here) - 1) : one;
        here &= here - 1;
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
          u64 at = column + p * 32 * VEC;
          if (at >= inner) continue;
          pack<S, VEC> a = load_pack<VEC>(from + place((outer * count + one) * inner + at, lies));
          pack<S, VEC> b = load_pack<VEC>(from + place((outer * count + two) * inner + at, lies));
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            C &sum = sums[p * VEC + v];
            sum = sum + alpha * C(widen(Narrow<T>::of(READ(a.at[v]))));
            if (is_pair) sum = sum + alpha * C(widen(Narrow<T>::of(READ(b.at[v]))));
          }
        }
      }
    }
  }
  if (!is_met) return;
#pragma unroll
  for (int p = 0; p < PACKS; ++p) {
    if (column + p * 32 * VEC >= inner) continue;
    pack<T, VEC> now;
#pragma unroll
    for (int v = 0; v < VEC; ++v) now.at[v] = Narrow<T>::of(sums[p * VEC + v]);
    store_pack<VEC>(row + p * 32 * VEC, now);
  }
}
#endif
