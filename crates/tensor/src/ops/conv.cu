// Convolutions and their gradients by their definition, one number for each thread.

struct Window { i64 size, kernel, stride, padding, dilation, places; };
struct Sizes { i64 images, groups, channels, outputs; Window rows, columns; };

// Where a place of the result sees the image under a point of the filter; -1 in the padding.
DEVICE i64 sees(const Window &window, i64 place, i64 point) {
  i64 at = place * window.stride + point * window.dilation - window.padding;
  return at >= 0 && at < window.size ? at : -1;
}

// The place of the result that sees an element under a point of the filter; -1 if there is none.
DEVICE i64 seen_from(const Window &window, i64 at, i64 point) {
  i64 offset = at + window.padding - point * window.dilation;
  if (offset < 0 || offset % window.stride != 0) return -1;
  i64 place = offset / window.stride;
  return place < window.places ? place : -1;
}

extern "C" __global__ void tonnage_convolution(const T *x, const T *weight, T *y, const Sizes s) {
  i64 channels_out = s.groups * s.outputs, channels_in = s.groups * s.channels;
  i64 count = s.images * channels_out * s.rows.places * s.columns.places;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    i64 column = i % s.columns.places, row = i / s.columns.places % s.rows.places;
    i64 out = i / (s.columns.places * s.rows.places) % channels_out;
    i64 image = i / (s.columns.places * s.rows.places * channels_out), group = out / s.outputs;
    C sum = C(0);
    for (i64 c = 0; c < s.channels; ++c)
      for (i64 p = 0; p < s.rows.kernel; ++p)
        for (i64 q = 0; q < s.columns.kernel; ++q) {
          i64 h = sees(s.rows, row, p), w = sees(s.columns, column, q);
          if (h < 0 || w < 0) continue;
          i64 at = ((image * channels_in + group * s.channels + c) * s.rows.size + h) * s.columns.size + w;
          i64 tap = ((out * s.channels + c) * s.rows.kernel + p) * s.columns.kernel + q;
          sum += widen(x[at]) * widen(weight[tap]);
        }
    y[i] = Narrow<T>::of(sum);
  }
}

extern "C" __global__ void tonnage_convolution_input_gradient(T *x, const T *weight, const T *y, const Sizes s) {
  i64 channels_out = s.groups * s.outputs, channels_in = s.groups * s.channels;
  i64 count = s.images * channels_in * s.rows.size * s.columns.size;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    i64 w = i % s.columns.size, h = i / s.columns.size % s.rows.size;
    i64 channel = i / (s.columns.size * s.rows.size) % channels_in;
    i64 image = i / (s.columns.size * s.rows.size * channels_in);
    i64 group = channel / s.channels, c = channel % s.channels;
    C sum = C(0);
    for (i64 o = 0; o < s.outputs; ++o)
      for (i64 p = 0; p < s.rows.kernel; ++p)
        for (i64 q = 0; q < s.columns.kernel; ++q) {
          i64 row = seen_from(s.rows, h, p), column = seen_from(s.columns, w, q);
          if (row < 0 || column < 0) continue;
          i64 out = group * s.outputs + o;
          i64 at = ((image * channels_out + out) * s.rows.places + row) * s.columns.places + column;
          i64 tap = ((out * s.channels + c) * s.rows.kernel + p) * s.columns.kernel + q;
          sum += widen(y[at]) * widen(weight[tap]);
        }
    x[i] = Narrow<T>::of(sum);
  }
}

extern "C" __global__ void tonnage_convolution_filter_gradient(const T *x, T *weight, const T *y, const Sizes s) {
  i64 channels_out = s.groups * s.outputs, channels_in = s.groups * s.channels;
  i64 count = channels_out * s.channels * s.rows.kernel * s.columns.kernel;
  for (i64 i = global_thread(); i < count; i += global_threads()) {
    i64 q = i % s.columns.kernel, p = i / s.columns.kernel % s.rows.kernel;
    i64 c = i / (s.columns.kernel * s.rows.kernel) % s.channels;
    i64 out = i / (s.columns.kernel * s.rows.kernel * s.channels), group = out / s.outputs;
    C sum = C(0);
    for (i64 image = 0; image < s.images; ++image)
      for (i64 row = 0; row < s.rows.places; ++row)
        for (i64 column = 0; column < s.columns.places; ++column) {
          i64 h = sees(s.rows, row, p), w = sees(s.columns, column, q);
          if (h < 0 || w < 0) continue;
          i64 at = ((image * channels_in + group * s.channels + c) * s.rows.size + h) * s.columns.size + w;
          i64 from = ((image * channels_out + out) * s.rows.places + row) * s.columns.places + column;
          sum += widen(x[at]) * widen(y[from]);
        }
    weight[i] = Narrow<T>::of(sum);
  }
}
