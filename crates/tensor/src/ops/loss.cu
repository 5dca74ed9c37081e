// Losses over classes: scores are [outer, classes, inner], targets [outer, inner].

#define MEAN 1
#define SUM 2

// The class of a target; none for the one that counts for nothing, and for what is no class.
DEVICE i64 class_of(TARGET target, i64 classes, i64 ignored) {
  i64 it = widen(target);
  return it == ignored || it < 0 || it >= classes ? -1 : it;
}

#ifdef COMPLAINS
// Says which target is no class: its number and where it stands, as far as each fits 32 bits.
DEVICE void check(TARGET target, u64 place, i64 classes, i64 ignored, Failure *failure, u32 ticket) {
  i64 it = widen(target);
  if (it == ignored || (it >= 0 && it < classes)) return;
  it = it > 2147483647LL ? 2147483647LL : it < -2147483648LL ? -2147483648LL : it;
  place = place > 0xffffffffULL ? 0xffffffffULL : place;
  fail(failure, ticket, (i64)(((u64)it << 32) | place));
}
#endif

#if defined(NLL)
// One block.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_nll(
    OUT *out, OUT *total, const IN *in, const TARGET *targets, const WEIGHT *weight, u64 elements, u64 classes, u64 inner,
    i64 ignored, Failure *failure, u32 ticket) {
  double sum = 0, weights = 0;
#pragma unroll 4
  for (u64 element = threadIdx.x; element < elements; element += THREADS) {
    i64 of = class_of(targets[element], classes, ignored);
    double loss = 0;
    if (of >= 0) {
      double scale = HAS_WEIGHT ? number<double>(weight[of]) : 1.0;
      loss = -scale * number<double>(in[(element / inner * classes + of) * inner + element % inner]);
      weights += scale;
    } else {
      check(targets[element], element, classes, ignored, failure, ticket);
    }
    if (REDUCTION != MEAN && REDUCTION != SUM) out[element] = Narrow<OUT>::of(loss);
    sum += loss;
  }
  sum = group_reduce(sum, adds());
  weights = group_reduce(weights, adds());
  if (threadIdx.x == 0) {
    if (REDUCTION == MEAN) out[0] = Narrow<OUT>::of(sum / weights);
    if (REDUCTION == SUM) out[0] = Narrow<OUT>::of(sum);
    total[0] = Narrow<OUT>::of(weights);
  }
}
#elif defined(NLL_GRAD)
// Zero but at targets.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_nll_grad(
    OUT *out, const GRAD *grads, const TARGET *targets, const TOTAL *total, const WEIGHT *weight, u64 numel, u64 classes,
    u64 inner, i64 ignored) {
  for (u64 first = global_thread() * PACK; first < numel; first += global_threads() * PACK) {
    pack<OUT, PACK> write;
    // PACK divides the inner size, or there is none and it divides the classes.
    INDEX place = (INDEX)first / (INDEX)inner, column = (INDEX)first % (INDEX)inner;
    INDEX outer = place / (INDEX)classes, at = place % (INDEX)classes;
#pragma unroll
    for (int j = 0; j < PACK; ++j) {
      u64 element = INNER ? (u64)outer * inner + column + j : outer;
      i64 mine = INNER ? at : at + j;
      i64 of = class_of(targets[element], classes, ignored);
      double gradient = 0;
      if (of == mine) {
        double scale = HAS_WEIGHT ? number<double>(weight[of]) : 1.0;
        double grad = number<double>(grads[REDUCTION == MEAN || REDUCTION == SUM ? 0 : element]);
        gradient = -scale * (REDUCTION == MEAN ? grad / number<double>(total[0]) : grad);
      }
      write.at[j] = Narrow<OUT>::of(gradient);
    }
    store_pack<PACK>(out + first, write);
  }
}
#elif defined(LEAN)
// For each row the logarithm of its sum of exponentials; and its loss, if losses stay as they are.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_lean_cross_entropy(
    C *out, C *log_sums, const IN *in, const TARGET *targets, u64 rows, u64 classes, i64 ignored, Failure *failure,
    u32 ticket) {
  for (u64 row = first_row(); row < rows; row += rows_at_once()) {
    const IN *from = in + row * classes;
    // Packs begin where memory is aligned; what lies before and behind is read one by one.
    u64 head = HEAD ? (PACK - (row * classes + START) % PACK) % PACK : 0;
    head = head < classes ? head : classes;
    u64 packs = (classes - head) / PACK, tail = head + packs * PACK;
    Exponentials all = none_yet();
    auto one = [&](u64 at) {
      C it = number<C>(from[at]);
      Exponentials single = {it == it ? it : C(lowest()), it == it ? (it == C(lowest()) ? C(0) : C(1)) : it};
      all = together()(all, single);
    };
    if (HEAD)
      for (u64 at = member(); at < head; at += GROUP) one(at);
#pragma unroll 4
    for (u64 at = member(); at < packs; at += GROUP) include(all, load_pack<PACK>(from + head + at * PACK));
    if (HEAD)
      for (u64 at = tail + member(); at < classes; at += GROUP) one(at);
    all = group_reduce(all, together());
    if (member() == 0) {
      C log_sum = all.largest + log(all.sum);
      log_sums[row] = log_sum;
      i64 of = class_of(targets[row], classes, ignored);
      if (of < 0) check(targets[row], row, classes, ignored, failure, ticket);
      if (REDUCTION != MEAN && REDUCTION != SUM) out[row] = of < 0 ? C(0) : log_sum - number<C>(from[of]);
    }
  }
}
#elif defined(LEAN_SUM)
// The losses of all rows as one. One block.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_lean_cross_entropy_sum(
    C *out, const C *log_sums, const IN *in, const TARGET *targets, u64 rows, u64 classes, i64 ignored) {
  double sum = 0;
  i64 counted = 0;
#pragma unroll 4
  for (u64 row = threadIdx.x; row < rows; row += THREADS) {
    i64 of = class_of(targets[row], classes, ignored);
    if (of >= 0) {
      sum += log_sums[row] - number<C>(in[row * classes + of]);
      ++counted;
    }
  }
  sum = group_reduce(sum, adds());
  counted = group_reduce(counted, adds());
  if (threadIdx.x == 0) out[0] = C(REDUCTION == MEAN ? sum / (double)counted : sum);
}
#else
// Probabilities, less one at the target.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_lean_cross_entropy_grad(
    IN *out, const GRAD *grads, const IN *in, const TARGET *targets, const C *log_sums, u64 rows, u64 classes,
    i64 ignored) {
  double total = 1;
  if (REDUCTION == MEAN) {
    // Each block counts for itself: there are few blocks, and targets are few beside scores.
    __shared__ i64 parts[THREADS / 32];
    i64 counted = 0;
#pragma unroll 4
    for (u64 row = threadIdx.x; row < rows; row += THREADS) counted += class_of(targets[row], classes, ignored) >= 0;
    counted = warp_sum(counted);
    if (lane() == 0) parts[warp()] = counted;
    __syncthreads();
    counted = 0;
    for (int it = 0; it < THREADS / 32; ++it) counted += parts[it];
    total = (double)counted;
  }
  for (u64 row = first_row(); row < rows; row += rows_at_once()) {
    const IN *from = in + row * classes;
    IN *to = out + row * classes;
    i64 of = class_of(targets[row], classes, ignored);
    C scale = C(number<double>(grads[REDUCTION == MEAN || REDUCTION == SUM ? 0 : row]) / total), log_sum = log_sums[row];
    u64 head = HEAD ? (PACK - (row * classes + START) % PACK) % PACK : 0;
    head = head < classes ? head : classes;
    u64 packs = (classes - head) / PACK, tail = head + packs * PACK;
    auto gradient = [&](IN it, u64 at) {
      C probability = exp(number<C>(it) - log_sum);
      return Narrow<IN>::of(of < 0 ? C(0) : scale * ((i64)at == of ? probability - C(1) : probability));
    };
    if (HEAD)
      for (u64 at = member(); at < head; at += GROUP) to[at] = gradient(from[at], at);
#pragma unroll 4
    for (u64 it = member(); it < packs; it += GROUP) {
      u64 at = head + it * PACK;
      pack<IN, PACK> read = load_pack<PACK>(from + at), write;
#pragma unroll
      for (int j = 0; j < PACK; ++j) write.at[j] = gradient(read.at[j], at + j);
      store_pack<PACK>(to + at, write);
    }
    if (HEAD)
      for (u64 at = tail + member(); at < classes; at += GROUP) to[at] = gradient(from[at], at);
  }
}
#endif
