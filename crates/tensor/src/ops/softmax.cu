// Softmax and its logarithm, and their gradients, along an axis of [rows, width, inner].

#ifdef COLUMNS
// A thread for each vector: those beside each other lie side by side.
#ifdef GRAD
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_softmax_columns_grad(
    OUT *out, const GRAD *grads, const IN *ys, u64 vectors, u64 width, u64 inner) {
  for (u64 vector = global_thread(); vector < vectors; vector += global_threads()) {
    u64 first = vector / inner * width * inner + vector % inner;
    C sum = 0;
    for (u64 at = 0; at < width; ++at) {
      C grad = number<C>(grads[first + at * inner]);
      sum += LOG ? grad : grad * number<C>(ys[first + at * inner]);
    }
    for (u64 at = 0; at < width; ++at) {
      C grad = number<C>(grads[first + at * inner]), y = number<C>(ys[first + at * inner]);
      out[first + at * inner] = Narrow<OUT>::of(LOG ? grad - exp(y) * sum : y * (grad - sum));
    }
  }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_softmax_columns(
    OUT *out, const IN *in, u64 vectors, u64 width, u64 inner) {
  for (u64 vector = global_thread(); vector < vectors; vector += global_threads()) {
    u64 first = vector / inner * width * inner + vector % inner;
    C largest = lowest(), sum = 0;
    for (u64 at = 0; at < width; ++at) largest = larger()(largest, number<C>(in[first + at * inner]));
    for (u64 at = 0; at < width; ++at) sum += exp(number<C>(in[first + at * inner]) - largest);
    C scale = LOG ? log(sum) : C(1) / sum;
    for (u64 at = 0; at < width; ++at) {
      C x = number<C>(in[first + at * inner]) - largest;
      out[first + at * inner] = Narrow<OUT>::of(LOG ? x - scale : exp(x) * scale);
    }
  }
}
#endif
#elif defined(GRAD)
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_softmax_grad(
    OUT *out, const GRAD *grads, const IN *ys, u64 rows, u32 width) {
  constexpr int KEPT = ITEMS > 0 ? ITEMS : 1;
  u32 packs = width / PACK;
  for (u64 row = first_row(); row < rows; row += rows_at_once()) {
    u64 first = row * width;
    pack<GRAD, PACK> grad[KEPT];
    pack<IN, PACK> y[KEPT];
    C sum = 0;
    auto add = [&](const pack<GRAD, PACK> &grad, const pack<IN, PACK> &y) {
#pragma unroll
      for (int j = 0; j < PACK; ++j) sum += LOG ? number<C>(grad.at[j]) : number<C>(grad.at[j]) * number<C>(y.at[j]);
    };
    auto put = [&](u32 at, const pack<GRAD, PACK> &grads, const pack<IN, PACK> &ys) {
      pack<OUT, PACK> to;
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        C grad = number<C>(grads.at[j]), y = number<C>(ys.at[j]);
        to.at[j] = Narrow<OUT>::of(LOG ? grad - exp(y) * sum : y * (grad - sum));
      }
      store_pack<PACK>(out + first + (u64)at * PACK, to);
    };
#if ITEMS > 0
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        u32 at = member() + i * GROUP;
        if (at < packs) {
          grad[i] = load_pack<PACK>(grads + first + (u64)at * PACK);
          y[i] = load_pack<PACK>(ys + first + (u64)at * PACK);
          add(grad[i], y[i]);
        }
      }
#else
      for (u32 at = member(); at < packs; at += GROUP)
        add(load_pack<PACK>(grads + first + (u64)at * PACK), load_pack<PACK>(ys + first + (u64)at * PACK));
#endif
    sum = group_reduce(sum, adds());
#if ITEMS > 0
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        u32 at = member() + i * GROUP;
        if (at < packs) put(at, grad[i], y[i]);
      }
#else
      for (u32 at = member(); at < packs; at += GROUP)
        put(at, load_pack<PACK>(grads + first + (u64)at * PACK), load_pack<PACK>(ys + first + (u64)at * PACK));
#endif
  }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_softmax(OUT *out, const IN *in, u64 rows, u32 width) {
  u32 packs = width / PACK;
  for (u64 row = first_row(); row < rows; row += rows_at_once()) {
    const IN *from = in + row * width;
    OUT *to = out + row * width;
#if ITEMS > 0
    C x[ITEMS][PACK];
    C largest = lowest(), sum = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      u32 at = member() + i * GROUP;
      if (at < packs) {
        pack<IN, PACK> read = load_pack<PACK>(from + (u64)at * PACK);
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
          x[i][j] = number<C>(read.at[j]);
          largest = larger()(largest, x[i][j]);
        }
      }
    }
    largest = group_reduce(largest, larger());
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (member() + i * GROUP < packs) {
#pragma unroll
        for (int j = 0; j < PACK; ++j) {
          x[i][j] -= largest;
          C power = exp(x[i][j]);
          sum += power;
          if (!LOG) x[i][j] = power;
        }
      }
    }
    sum = group_reduce(sum, adds());
    C scale = LOG ? log(sum) : C(1) / sum;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      u32 at = member() + i * GROUP;
      if (at < packs) {
        pack<OUT, PACK> write;
#pragma unroll
        for (int j = 0; j < PACK; ++j) write.at[j] = Narrow<OUT>::of(LOG ? x[i][j] - scale : x[i][j] * scale);
        store_pack<PACK>(to + (u64)at * PACK, write);
      }
    }
#else
    Exponentials all = none_yet();
    for (u32 at = member(); at < packs; at += GROUP) include(all, load_pack<PACK>(from + (u64)at * PACK));
    all = group_reduce(all, together());
    C scale = LOG ? log(all.sum) : C(1) / all.sum;
    for (u32 at = member(); at < packs; at += GROUP) {
      pack<IN, PACK> read = load_pack<PACK>(from + (u64)at * PACK);
      pack<OUT, PACK> write;
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        C x = number<C>(read.at[j]) - all.largest;
        write.at[j] = Narrow<OUT>::of(LOG ? x - scale : exp(x) * scale);
      }
      store_pack<PACK>(to + (u64)at * PACK, write);
    }
#endif
  }
}
#endif
