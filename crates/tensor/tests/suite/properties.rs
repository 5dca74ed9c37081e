//! Views, broadcasting and reductions on whole tensors, against something simpler: numbers in a `Vec`
//! and the definition of each operation by indices.

use proptest::prelude::*;
use tonnage_tensor::{Device, Result, Tensor};

use crate::computing;

/// Numbers in the order of their indices.
#[derive(Clone, Debug, PartialEq)]
struct Simple {
    shape: Vec<usize>,
    data: Vec<f64>,
}

/// All indices of a shape, the last axis fastest.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, size| {
        all.iter().flat_map(|index| (0..*size).map(|it| [&index[..], &[it]].concat())).collect()
    })
}

impl Simple {
    fn new(shape: Vec<usize>, at: impl Fn(&[usize]) -> f64) -> Self {
        let data = indices(&shape).iter().map(|index| at(index)).collect();
        Self { shape, data }
    }

    /// The element at an index.
    fn at(&self, index: &[usize]) -> f64 {
        let place = index.iter().zip(&self.shape).fold(0, |place, (it, size)| place * size + it);
        self.data[place]
    }

    /// The element at an index of a shape that it broadcasts to.
    fn wide(&self, index: &[usize]) -> f64 {
        let index = &index[index.len() - self.shape.len()..];
        let narrow =
            index.iter().zip(&self.shape).map(|(it, size)| if *size == 1 { 0 } else { *it });
        self.at(&narrow.collect::<Vec<_>>())
    }
}

/// A view, with numbers that are brought into range once the shape is known.
#[derive(Clone, Debug)]
enum View {
    Transpose(usize, usize),
    Permute(usize),
    Slice(usize, usize, usize, usize),
    Select(usize, usize),
    Unsqueeze(usize),
    Expand(usize, usize),
    Merge(usize),
    Reverse,
}

fn view() -> impl Strategy<Value = View> {
    let n = || 0..100usize;
    prop_oneof![
        (n(), n()).prop_map(|(a, b)| View::Transpose(a, b)),
        n().prop_map(View::Permute),
        (n(), n(), n(), 1..4usize).prop_map(|(a, b, c, d)| View::Slice(a, b, c, d)),
        (n(), n()).prop_map(|(a, b)| View::Select(a, b)),
        n().prop_map(View::Unsqueeze),
        (n(), 1..4usize).prop_map(|(a, b)| View::Expand(a, b)),
        n().prop_map(View::Merge),
        Just(View::Reverse),
    ]
}

/// The same view of both. What the shape does not allow is left out.
fn apply(view: &View, tensor: &Tensor, simple: &Simple) -> Result<(Tensor, Simple)> {
    let (axes, mut shape) = (simple.shape.len(), simple.shape.clone());
    let moved = |order: &[usize]| {
        let shape = order.iter().map(|axis| simple.shape[*axis]).collect();
        Simple::new(shape, |index| {
            let mut from = vec![0; axes];
            order.iter().zip(index).for_each(|(axis, it)| from[*axis] = *it);
            simple.at(&from)
        })
    };
    Ok(match *view {
        View::Unsqueeze(axis) if axes < 5 => {
            let axis = axis % (axes + 1);
            shape.insert(axis, 1);
            let new = Simple { shape, data: simple.data.clone() };
            (tensor.unsqueeze(axis as isize)?, new)
        }
        _ if axes == 0 => (tensor.clone(), simple.clone()),
        View::Transpose(a, b) => {
            let (a, b) = (a % axes, b % axes);
            let mut order: Vec<usize> = (0..axes).collect();
            order.swap(a, b);
            (tensor.transpose(a as isize, b as isize - axes as isize)?, moved(&order))
        }
        View::Permute(by) => {
            let mut order: Vec<usize> = (0..axes).collect();
            order.rotate_left(by % axes);
            let signed: Vec<isize> = order.iter().map(|it| *it as isize).collect();
            (tensor.permute(&signed)?, moved(&order))
        }
        View::Reverse => {
            let order: Vec<usize> = (0..axes).rev().collect();
            let signed: Vec<isize> = order.iter().map(|it| *it as isize).collect();
            (tensor.permute(&signed)?, moved(&order))
        }
        View::Slice(axis, a, b, step) => {
            let axis = axis % axes;
            let (a, b) = (a % (shape[axis] + 1), b % (shape[axis] + 1));
            let range = a.min(b)..a.max(b);
            shape[axis] = range.len().div_ceil(step);
            let new = Simple::new(shape, |index| {
                let mut from = index.to_vec();
                from[axis] = range.start + index[axis] * step;
                simple.at(&from)
            });
            (tensor.slice(axis as isize, range.clone(), step)?, new)
        }
        View::Select(axis, place) if shape[axis % axes] > 0 => {
            let axis = axis % axes;
            let place = place % shape.remove(axis);
            let new = Simple::new(shape, |index| {
                simple.at(&[&index[..axis], &[place], &index[axis..]].concat())
            });
            (tensor.select(axis as isize, place)?, new)
        }
        View::Expand(axis, size) => {
            let axis = axis % axes;
            if shape[axis] == 1 {
                shape[axis] = size;
            }
            (tensor.expand(shape.clone())?, Simple::new(shape, |index| simple.wide(index)))
        }
        // Two neighbouring axes as one: a view where they lie so, otherwise a copy.
        View::Merge(axis) if axes > 1 => {
            let axis = axis % (axes - 1);
            let size = shape.remove(axis);
            shape[axis] *= size;
            let new = Simple { shape: shape.clone(), data: simple.data.clone() };
            (tensor.reshape(shape)?, new)
        }
        _ => (tensor.clone(), simple.clone()),
    })
}

fn shape() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![9 => 1..5usize, 1 => Just(0)], 0..4)
}

fn numbered(shape: &[usize]) -> Simple {
    let count: usize = shape.iter().product();
    Simple { shape: shape.to_vec(), data: (0..count).map(|it| it as f64 + 1.0).collect() }
}

fn tensor_of(simple: &Simple, device: &Device) -> Tensor {
    Tensor::from_slice(&simple.data, simple.shape.clone(), device).unwrap()
}

#[track_caller]
fn assert_same(tensor: &Tensor, simple: &Simple) {
    assert_eq!(tensor.shape()[..], simple.shape[..]);
    assert_eq!(tensor.to_vec::<f64>().unwrap(), simple.data);
}

/// Two shapes that broadcast: one with some sizes of the other replaced by one and some axes left out.
fn broadcasting() -> impl Strategy<Value = [Vec<usize>; 2]> {
    let masks = || prop::collection::vec(any::<bool>(), 4);
    (shape(), masks(), masks(), 0..4usize, any::<bool>()).prop_map(
        |(shape, one, other, left_out, swap)| {
            let narrowed = |mask: &[bool]| -> Vec<usize> {
                shape.iter().zip(mask).map(|(size, one)| if *one { 1 } else { *size }).collect()
            };
            let (a, b) = (narrowed(&one), narrowed(&other));
            let b = b[left_out.min(b.len())..].to_vec();
            if swap { [b, a] } else { [a, b] }
        },
    )
}

fn together(a: &[usize], b: &[usize]) -> Vec<usize> {
    let axes = a.len().max(b.len());
    let size = |shape: &[usize], axis: usize| {
        (axis + shape.len()).checked_sub(axes).map_or(1, |axis| shape[axis])
    };
    (0..axes)
        .map(|axis| match (size(a, axis), size(b, axis)) {
            (1, other) => other,
            (size, _) => size,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn views_of_views_show_what_the_indices_say(
        shape in shape(),
        views in prop::collection::vec(view(), 0..6),
    ) {
        let device = computing("4 MiB");
        let mut simple = numbered(&shape);
        let mut tensor = tensor_of(&simple, &device);
        for view in &views {
            (tensor, simple) = apply(view, &tensor, &simple).unwrap();
            assert_same(&tensor, &simple);
        }
        assert_same(&tensor.contiguous().unwrap(), &simple);
        assert_same(&tensor.copy().unwrap(), &simple);
        let sum: f64 = simple.data.iter().sum();
        prop_assert_eq!(tensor.sum().unwrap().item::<f64>().unwrap(), sum);
    }

    #[test]
    fn what_is_written_through_a_view_is_seen_in_what_it_is_a_view_of(
        shape in shape(),
        views in prop::collection::vec(view(), 0..4),
    ) {
        let device = computing("4 MiB");
        let simple = numbered(&shape);
        let whole = tensor_of(&simple, &device);
        let (mut part, mut seen) = (whole.clone(), simple.clone());
        for view in views.iter().filter(|it| !matches!(it, View::Expand(..))) {
            (part, seen) = apply(view, &part, &seen).unwrap();
        }
        // Elements are their numbers, so that what a view shows says what it is a view of.
        part.mul_(-1.0).unwrap();
        let shares = part.shares_storage_with(&whole);
        let expected = simple.data.iter().map(|it| {
            if shares && seen.data.contains(it) { -it } else { *it }
        });
        prop_assert_eq!(whole.to_vec::<f64>().unwrap(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn gradients_of_views_count_how_often_an_element_is_seen(
        shape in shape(),
        views in prop::collection::vec(view(), 0..5),
    ) {
        let device = computing("4 MiB");
        let simple = numbered(&shape);
        let leaf = tensor_of(&simple, &device).requires_grad_(true).unwrap();
        let (mut tensor, mut seen) = (leaf.clone(), simple.clone());
        for view in &views {
            (tensor, seen) = apply(view, &tensor, &seen).unwrap();
        }
        let weights = numbered(&seen.shape);
        tensor.mul(&tensor_of(&weights, &device)).unwrap().sum().unwrap().backward().unwrap();
        let mut expected = vec![0.0; simple.data.len()];
        for (number, weight) in seen.data.iter().zip(&weights.data) {
            expected[*number as usize - 1] += weight;
        }
        prop_assert_eq!(leaf.grad().unwrap().to_vec::<f64>().unwrap(), expected);
    }

    #[test]
    fn broadcast_operations_are_those_of_single_elements([a, b] in broadcasting()) {
        let device = computing("4 MiB");
        let (a, b) = (numbered(&a), numbered(&b));
        let [x, y] = [&a, &b].map(|it| tensor_of(it, &device).requires_grad_(true).unwrap());
        type Both = fn(&Tensor, &Tensor) -> Result<Tensor>;
        type Single = fn(f64, f64) -> f64;
        let cases: [(Both, Single); 5] = [
            (|x, y| x.add(y), |x, y| x + y),
            (|x, y| x.sub(y), |x, y| x - y),
            (|x, y| x.mul(y), |x, y| x * y),
            (|x, y| x.div(y), |x, y| x / y),
            (|x, y| x.gt(y)?.where_cond(x, y), |x, y| if x > y { x } else { y }),
        ];
        let shape = together(&a.shape, &b.shape);
        for (both, single) in cases {
            let expected = Simple::new(shape.clone(), |at| single(a.wide(at), b.wide(at)));
            assert_same(&both(&x, &y).unwrap(), &expected);
        }
        // The gradient of a product: the other side, summed over what was stretched.
        x.mul(&y).unwrap().sum().unwrap().backward().unwrap();
        for (leaf, own, other) in [(&x, &a, &b), (&y, &b, &a)] {
            let mut sums = vec![0.0; own.data.len()];
            for at in indices(&shape) {
                sums[own.wide(&at) as usize - 1] += other.wide(&at);
            }
            prop_assert_eq!(leaf.grad().unwrap().to_vec::<f64>().unwrap(), sums);
        }
    }

    #[test]
    fn shapes_that_do_not_broadcast_are_refused(a in shape(), b in shape()) {
        let device = Device::dry("4 MiB").unwrap();
        let fits = a.iter().rev().zip(b.iter().rev()).all(|(a, b)| a == b || *a == 1 || *b == 1);
        let [x, y] = [a, b].map(|shape| Tensor::zeros(shape, &device).unwrap());
        match x.add(&y) {
            Ok(sum) => {
                prop_assert!(fits);
                prop_assert_eq!(&sum.shape()[..], &together(x.shape(), y.shape())[..]);
            }
            Err(error) => {
                prop_assert!(!fits);
                prop_assert!(error.to_string().contains("do not broadcast"), "{}", error);
            }
        }
    }

    #[test]
    fn sums_over_axes_are_those_of_the_definition(
        shape in shape(),
        views in prop::collection::vec(view(), 0..3),
        mask in prop::collection::vec(any::<bool>(), 5),
        keep in any::<bool>(),
    ) {
        let device = computing("4 MiB");
        let mut simple = numbered(&shape);
        let mut tensor = tensor_of(&simple, &device);
        for view in &views {
            (tensor, simple) = apply(view, &tensor, &simple).unwrap();
        }
        let axes: Vec<usize> = (0..simple.shape.len()).filter(|axis| mask[*axis]).collect();
        if axes.is_empty() {
            return Ok(());
        }
        let summed = |size: (usize, &usize)| if axes.contains(&size.0) { 1 } else { *size.1 };
        let kept: Vec<usize> = simple.shape.iter().enumerate().map(summed).collect();
        let zeros = Simple::new(kept.clone(), |_| 0.0);
        let mut expected = zeros.data.clone();
        let places = numbered(&kept);
        for (at, value) in indices(&simple.shape).iter().zip(&simple.data) {
            expected[places.wide(at) as usize - 1] += value;
        }
        let signed: Vec<isize> = axes.iter().map(|axis| *axis as isize).collect();
        let sum = tensor.sum_dim(&signed, keep).unwrap();
        let without = || kept.iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
        let without: Vec<usize> = without().map(|(_, size)| *size).collect();
        prop_assert_eq!(&sum.shape()[..], if keep { &kept[..] } else { &without[..] });
        prop_assert_eq!(sum.to_vec::<f64>().unwrap(), expected);
    }
}
