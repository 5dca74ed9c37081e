// Norms over rows, and their gradients. Weights are those of columns (PLAIN), or of channels of AREA neighbours that
// repeat after some rows.

#ifndef REDUCES
struct Weights { u64 width, period, area; };

// The weights of PACK columns of a row.
template <class E> DEVICE void weights_at(const E *from, const Weights &of, u64 row, u32 column, C (&to)[PACK]) {
#if PLAIN
  read_numbers(from + column, to);
#else
  C one = number<C>(from[(row % of.period * of.width + column) / of.area]);
#pragma unroll
  for (int j = 0; j < PACK; ++j) to[j] = one;
#endif
}
#endif

#if defined(FORWARD)
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_norm_rows(
    IN *out, C *means, C *rstds, const IN *in, const WEIGHT *weight, const BIAS *bias, u64 rows, Weights of, double eps) {
  u32 packs = (u32)(of.width / PACK);
  C share = C(1) / C(of.width);
  for (u64 row = first_row(); row < rows; row += rows_at_once()) {
    Row<IN> x;
    x.read(in + row * of.width, packs);
    C mean = 0, square = 0;
    if (CENTERED) {
      each_pack(packs, [&](int i, u32 at) {
        pack<IN, PACK> read = x.get(i, at);
#pragma unroll
        for (int j = 0; j < PACK; ++j) mean += number<C>(read.at[j]);
      });
      mean = group_reduce(mean, adds()) * share;
    }
    each_pack(packs, [&](int i, u32 at) {
      pack<IN, PACK> read = x.get(i, at);
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        C centered = number<C>(read.at[j]) - mean;
        square += centered * centered;
      }
    });
    square = group_reduce(square, adds()) * share;
    C rstd = C(1) / sqrt(square + C(eps));
    each_pack(packs, [&](int i, u32 at) {
      pack<IN, PACK> read = x.get(i, at), write;
      C scale[PACK], shift[PACK];
      if (HAS_WEIGHT) weights_at(weight, of, row, at * PACK, scale);
      if (HAS_BIAS) weights_at(bias, of, row, at * PACK, shift);
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        C it = (number<C>(read.at[j]) - mean) * rstd;
        if (HAS_WEIGHT) it *= scale[j];
        if (HAS_BIAS) it += shift[j];
        write.at[j] = Narrow<IN>::of(it);
      }
      store_pack<PACK>(out + row * of.width + (u64)at * PACK, write);
    });
    if (member() == 0) {
      if (CENTERED) means[row] = mean;
      rstds[row] = rstd;
    }
  }
}
#elif defined(BACKWARD)
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_norm_rows_grad(
    IN *out, const GRAD *grads, const IN *in, const C *rstds, const C *means, const WEIGHT *weight, u64 rows, Weights of) {
  u32 packs = (u32)(of.width / PACK);
  C share = C(1) / C(of.width);
  for (u64 row = first_row(); row < rows; row += rows_at_once()) {
    Row<IN> x;
    Row<GRAD> grad;
    x.read(in + row * of.width, packs);
    grad.read(grads + row * of.width, packs);
    C mean = CENTERED ? means[row] : C(0), rstd = rstds[row], along = 0, shift = 0;
    each_pack(packs, [&](int i, u32 at) {
      pack<IN, PACK> x_read = x.get(i, at);
      pack<GRAD, PACK> grad_read = grad.get(i, at);
      C scale[PACK];
      if (HAS_WEIGHT) weights_at(weight, of, row, at * PACK, scale);
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        C weighted = number<C>(grad_read.at[j]);
        if (HAS_WEIGHT) weighted *= scale[j];
        along += weighted * ((number<C>(x_read.at[j]) - mean) * rstd);
        shift += weighted;
      }
    });
    along = group_reduce(along, adds()) * share;
    shift = CENTERED ? group_reduce(shift, adds()) * share : C(0);
    each_pack(packs, [&](int i, u32 at) {
      pack<IN, PACK> x_read = x.get(i, at), write;
      pack<GRAD, PACK> grad_read = grad.get(i, at);
      C scale[PACK];
      if (HAS_WEIGHT) weights_at(weight, of, row, at * PACK, scale);
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        C weighted = number<C>(grad_read.at[j]);
        if (HAS_WEIGHT) weighted *= scale[j];
        C normal = (number<C>(x_read.at[j]) - mean) * rstd;
        write.at[j] = Narrow<IN>::of((weighted - shift - normal * along) * rstd);
      }
      store_pack<PACK>(out + row * of.width + (u64)at * PACK, write);
    });
  }
}
#elif defined(COLUMNS)
// Each lane takes PACK columns, LANES lanes lie side by side, and the block's lines of lanes share the rows.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_norm_columns_grad(
    WEIGHT *of_weight, BIAS *of_bias, const GRAD *grads, const IN *in, const C *rstds, const C *means, u64 rows,
    u64 columns) {
  constexpr int LINES = THREADS / LANES, WARPS = THREADS / 32;
  __shared__ C parts[2][WARPS][LANES * PACK];
  u32 x = threadIdx.x % LANES, y = threadIdx.x / LANES;
  for (u64 block = blockIdx.x; block * LANES * PACK < columns; block += gridDim.x) {
    u64 column = (block * LANES + x) * PACK;
    C along[PACK], plain[PACK];
#pragma unroll
    for (int j = 0; j < PACK; ++j) along[j] = plain[j] = 0;
    if (column < columns) {
      for (u64 row = y; row < rows; row += (u64)LINES * ROWS_AT_ONCE) {
        pack<IN, PACK> x_read[ROWS_AT_ONCE];
        pack<GRAD, PACK> grad_read[ROWS_AT_ONCE];
        C mean[ROWS_AT_ONCE], rstd[ROWS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < ROWS_AT_ONCE; ++u) {
          u64 at = row + u * LINES;
          if (at < rows) {
            x_read[u] = load_pack<PACK>(in + at * columns + column);
            grad_read[u] = load_pack<PACK>(grads + at * columns + column);
            mean[u] = CENTERED ? means[at] : C(0);
            rstd[u] = rstds[at];
          }
        }
#pragma unroll
        for (int u = 0; u < ROWS_AT_ONCE; ++u) {
          if (row + u * LINES < rows) {
#pragma unroll
            for (int j = 0; j < PACK; ++j) {
              C grad = number<C>(grad_read[u].at[j]);
              along[j] += grad * ((number<C>(x_read[u].at[j]) - mean[u]) * rstd[u]);
              plain[j] += grad;
            }
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < PACK; ++j) {
#pragma unroll
      for (int step = 16; step >= LANES; step /= 2) {
        along[j] += from_lane(along[j], step);
        plain[j] += from_lane(plain[j], step);
      }
      if (lane() < LANES) {
        parts[0][warp()][x * PACK + j] = along[j];
        parts[1][warp()][x * PACK + j] = plain[j];
      }
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < LANES * PACK; at += THREADS) {
      C along = 0, plain = 0;
#pragma unroll
      for (int it = 0; it < WARPS; ++it) {
        along += parts[0][it][at];
        plain += parts[1][it][at];
      }
      u64 to = block * LANES * PACK + at;
      if (to < columns) {
        if (HAS_WEIGHT) of_weight[to] = Narrow<WEIGHT>::of(along);
        if (HAS_BIAS) of_bias[to] = Narrow<BIAS>::of(plain);
      }
    }
    __syncthreads();
  }
}
#else
// A block for each channel of AREA neighbours.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_norm_channels_grad(
    WEIGHT *of_weight, BIAS *of_bias, const GRAD *grads, const IN *in, const C *rstds, const C *means, u64 images,
    u64 channels, u64 period, u64 area) {
  u64 packs_of_area = area / PACK;
  for (u64 channel = blockIdx.x; channel < channels; channel += gridDim.x) {
    C along = 0, plain = 0;
    for (u64 at = threadIdx.x; at < images * packs_of_area; at += THREADS) {
      u64 image = at / packs_of_area, place = at % packs_of_area * PACK;
      u64 row = image * period + channel / (channels / period);
      u64 first = (image * channels + channel) * area + place;
      pack<IN, PACK> x = load_pack<PACK>(in + first);
      pack<GRAD, PACK> grad = load_pack<PACK>(grads + first);
      C mean = CENTERED ? means[row] : C(0), rstd = rstds[row];
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        along += number<C>(grad.at[j]) * ((number<C>(x.at[j]) - mean) * rstd);
        plain += number<C>(grad.at[j]);
      }
    }
    along = group_reduce(along, adds());
    plain = group_reduce(plain, adds());
    if (threadIdx.x == 0) {
      if (HAS_WEIGHT) of_weight[channel] = Narrow<WEIGHT>::of(along);
      if (HAS_BIAS) of_bias[channel] = Narrow<BIAS>::of(plain);
    }
  }
}
#endif
