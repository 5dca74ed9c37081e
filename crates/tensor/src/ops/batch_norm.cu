// Batch norms and their gradients: [image, channel, area], each channel over all images.

struct Channels { u64 images, channels, area; };

// A number for each channel, in any layout.
template <class E> DEVICE C of_channel(const E *from, u64 stride, u64 channel) { return number<C>(from[channel * stride]); }

// Calls `f` with the place of each pack of a channel that is this thread's.
template <class F> DEVICE void each_pack_of(const Channels &g, u64 channel, F f) {
  INDEX packs = (INDEX)(g.area / PACK), all = (INDEX)g.images * packs;
#pragma unroll 4
  for (INDEX at = threadIdx.x; at < all; at += THREADS) {
    INDEX image = at / packs, place = at % packs;
    f(((u64)image * g.channels + channel) * g.area + (u64)place * PACK);
  }
}

// Calls `f` with the channel and the place of each pack of all that is this thread's.
template <class F> DEVICE void each_pack_of_all(const Channels &g, F f) {
  INDEX packs = (INDEX)(g.area / PACK), all = (INDEX)(g.images * g.channels) * packs;
  for (u64 at = global_thread(); at < all; at += global_threads()) {
    u64 channel = (INDEX)at / packs % (INDEX)g.channels;
    f(channel, at * PACK);
  }
}

#if defined(FORWARD)
DEVICE void normalise(IN *out, const IN *in, u64 at, C mean, C scale, C shift) {
  pack<IN, PACK> read = load_pack<PACK>(in + at), write;
#pragma unroll
  for (int j = 0; j < PACK; ++j) write.at[j] = Narrow<IN>::of((number<C>(read.at[j]) - mean) * scale + shift);
  store_pack<PACK>(out + at, write);
}

#if FIGURES
// Mean and deviation of each channel, by a block; and its normalised elements, if it writes them itself.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_batch_norm_figures(
    IN *out, C *means, C *rstds, C *running_mean, C *running_variance, u64 mean_stride, u64 variance_stride, const IN *in,
    const WEIGHT *weight, const BIAS *bias, u64 weight_stride, u64 bias_stride, Channels g, double momentum, double eps) {
  double count = (double)(g.images * g.area);
  for (u64 channel = blockIdx.x; channel < g.channels; channel += gridDim.x) {
    // Relative to some element, so that squares keep their digits.
    C base = number<C>(in[channel * g.area]);
    double sum = 0, square = 0;
    each_pack_of(g, channel, [&](u64 at) {
      pack<IN, PACK> read = load_pack<PACK>(in + at);
      C part = 0, squares = 0;
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        C it = number<C>(read.at[j]) - base;
        part += it;
        squares += it * it;
      }
      sum += (double)part;
      square += (double)squares;
    });
    sum = group_reduce(sum, adds()) / count;
    square = group_reduce(square, adds()) / count;
    double mean = (double)base + sum, variance = square - sum * sum;
    // Not `fmax`, to which what is no number is nothing.
    variance = variance < 0 ? 0 : variance;
    double rstd = 1.0 / sqrt(variance + eps);
    if (threadIdx.x == 0) {
      means[channel] = (C)mean;
      rstds[channel] = (C)rstd;
      if (RUNNING) {
        C *to = running_mean + channel * mean_stride;
        *to = (C)((1.0 - momentum) * (double)*to + momentum * mean);
        to = running_variance + channel * variance_stride;
        *to = (C)((1.0 - momentum) * (double)*to + momentum * (count / (count - 1.0)) * variance);
      }
    }
#if FUSED
    C scale = (HAS_WEIGHT ? of_channel(weight, weight_stride, channel) : C(1)) * (C)rstd;
    C shift = HAS_BIAS ? of_channel(bias, bias_stride, channel) : C(0);
    each_pack_of(g, channel, [&](u64 at) { normalise(out, in, at, (C)mean, scale, shift); });
#endif
  }
}
#else
// All elements, by figures that are there: means, and one over the deviations or (EVALUATES) variances.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_batch_norm(
    IN *out, const C *means, const C *deviations, u64 mean_stride, u64 deviation_stride, const IN *in, const WEIGHT *weight,
    const BIAS *bias, u64 weight_stride, u64 bias_stride, Channels g, double eps) {
  each_pack_of_all(g, [&](u64 channel, u64 at) {
    C deviation = of_channel(deviations, deviation_stride, channel);
    C scale = EVALUATES ? C(1) / sqrt(deviation + C(eps)) : deviation;
    if (HAS_WEIGHT) scale *= of_channel(weight, weight_stride, channel);
    C shift = HAS_BIAS ? of_channel(bias, bias_stride, channel) : C(0);
    normalise(out, in, at, of_channel(means, mean_stride, channel), scale, shift);
  });
}
#endif
#else
struct Slopes { C mean, inverse, scale, shift, along; };

DEVICE void spread(IN *out, const GRAD *grads, const IN *in, u64 at, const Slopes &by) {
  pack<IN, PACK> x = load_pack<PACK>(in + at), write;
  pack<GRAD, PACK> grad = load_pack<PACK>(grads + at);
#pragma unroll
  for (int j = 0; j < PACK; ++j) {
    C normal = (number<C>(x.at[j]) - by.mean) * by.inverse;
    write.at[j] = Narrow<IN>::of((number<C>(grad.at[j]) - by.shift - normal * by.along) * by.scale);
  }
  store_pack<PACK>(out + at, write);
}

DEVICE C inverse_of(const C *deviations, u64 stride, u64 channel, double eps) {
  C deviation = deviations[channel * stride];
  return EVALUATES ? C(1) / sqrt(deviation + C(eps)) : deviation;
}

#if FIGURES
// The sums of each channel, by a block: gradients of weight and bias; and that of its elements, if it writes them itself.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_batch_norm_grad_figures(
    IN *out, WEIGHT *of_weight, WEIGHT *of_bias, const GRAD *grads, const IN *in, const C *means, const C *deviations,
    u64 mean_stride, u64 deviation_stride, const WEIGHT *weight, u64 weight_stride, Channels g, double eps) {
  for (u64 channel = blockIdx.x; channel < g.channels; channel += gridDim.x) {
    C mean = of_channel(means, mean_stride, channel), inverse = inverse_of(deviations, deviation_stride, channel, eps);
    double plain = 0, along = 0;
    each_pack_of(g, channel, [&](u64 at) {
      pack<IN, PACK> x = load_pack<PACK>(in + at);
      pack<GRAD, PACK> grad = load_pack<PACK>(grads + at);
      C part = 0, products = 0;
#pragma unroll
      for (int j = 0; j < PACK; ++j) {
        part += number<C>(grad.at[j]);
        products += number<C>(grad.at[j]) * (number<C>(x.at[j]) - mean);
      }
      plain += (double)part;
      along += (double)products;
    });
    plain = group_reduce(plain, adds());
    along = group_reduce(along, adds()) * (double)inverse;
    if (HAS_WEIGHT && threadIdx.x == 0) {
      of_weight[channel] = Narrow<WEIGHT>::of(along);
      of_bias[channel] = Narrow<WEIGHT>::of(plain);
    }
#if FUSED
    C scale = HAS_WEIGHT ? of_channel(weight, weight_stride, channel) * inverse : inverse;
    double count = (double)(g.images * g.area);
    // A fixed mean and variance have no gradient.
    Slopes by = {mean, inverse, scale, EVALUATES ? C(0) : C(plain / count), EVALUATES ? C(0) : C(along / count)};
    each_pack_of(g, channel, [&](u64 at) { spread(out, grads, in, at, by); });
#endif
  }
}
#else
// All elements, by the gradients of weight and bias that are there.
extern "C" __global__ void __launch_bounds__(THREADS) tonnage_batch_norm_grad(
    IN *out, const C *of_weight, const C *of_bias, const GRAD *grads, const IN *in, const C *means, const C *deviations,
    u64 mean_stride, u64 deviation_stride, const WEIGHT *weight, u64 weight_stride, Channels g, double eps) {
  C share = C(1) / C(g.images * g.area);
  each_pack_of_all(g, [&](u64 channel, u64 at) {
    C inverse = inverse_of(deviations, deviation_stride, channel, eps);
    C scale = HAS_WEIGHT ? of_channel(weight, weight_stride, channel) * inverse : inverse;
    Slopes by = {of_channel(means, mean_stride, channel), inverse, scale, C(0), C(0)};
    if (!EVALUATES) {
      by.shift = of_bias[channel] * share;
      by.along = of_weight[channel] * share;
    }
    spread(out, grads, in, at, by);
  });
}
#endif
#endif
