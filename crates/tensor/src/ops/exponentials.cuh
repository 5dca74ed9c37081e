// Sums of exponentials that cannot overflow, in one pass.

// The largest of some numbers, and the sum of exponentials relative to it.
struct Exponentials { C largest, sum; };
DEVICE Exponentials from_lane(Exponentials it, int step) {
  Exponentials other = {from_lane(it.largest, step), from_lane(it.sum, step)};
  return other;
}
// What relates a sum to a larger number; nothing has no sum.
DEVICE C rebased(C sum, C from, C to) { return sum == C(0) ? C(0) : sum * exp(from - to); }
struct together {
  DEVICE Exponentials operator()(Exponentials a, Exponentials b) const {
    C largest = b.largest > a.largest ? b.largest : a.largest;
    Exponentials both = {largest, rebased(a.sum, a.largest, largest) + rebased(b.sum, b.largest, largest)};
    return both;
  }
};
DEVICE Exponentials none_yet() { Exponentials none = {C(lowest()), C(0)}; return none; }

// With PACK more numbers.
template <class E> DEVICE void include(Exponentials &all, const pack<E, PACK> &read) {
  C largest = all.largest;
#pragma unroll
  for (int j = 0; j < PACK; ++j) largest = larger()(largest, number<C>(read.at[j]));
  C sum = rebased(all.sum, all.largest, largest);
#pragma unroll
  for (int j = 0; j < PACK; ++j) {
    C it = number<C>(read.at[j]);
    sum += it == C(lowest()) ? C(0) : exp(it - largest);
  }
  all.largest = largest;
  all.sum = sum;
}
