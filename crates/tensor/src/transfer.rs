//! Numbers between tensors and the caller, between devices, and to and from pinned memory.

use std::sync::Mutex;

use tonnage_memory::{PinnedBlock, StreamId};

use crate::autograd::{Backward, Grads, Needs, record};
use crate::device::Device;
use crate::dtype::{DType, Element, Stored};
use crate::error::{Call, Result};
use crate::exec::{Operand, Used};
use crate::ops::Copy;
use crate::shape::{Layout, Shape};
use crate::storage::Uses;
use crate::tensor::Tensor;

struct ToDeviceBackward(Device);

impl Backward for ToDeviceBackward {
    fn backward(&self, grads: &[Option<Tensor>], _: &Needs<'_>) -> Result<Grads> {
        grads.iter().map(|grad| grad.as_ref().map(|it| it.to_device(&self.0)).transpose()).collect()
    }
}

impl Tensor {
    /// The numbers, rows one after the other. Waits for what computes them. On `dry`, where nothing is
    /// computed, zeros.
    ///
    /// # Errors
    ///
    /// If the element type is another, or if queued work failed: the error then names the call that
    /// queued it.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let call = Call::here("to_vec");
        if self.dtype() != T::DTYPE {
            let what = format!("the elements are {}, not {}", self.dtype(), T::DTYPE);
            return Err(call.dtype_error(what).help("convert with to first"));
        }
        self.read(call)
    }

    /// The number of a tensor that has one, converted. Waits for what computes it. On `dry`, where
    /// nothing is computed, zero.
    ///
    /// # Errors
    ///
    /// If it has not exactly one number, or if queued work failed.
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        let call = Call::here("item");
        match self.numel() {
            1 => Ok(self.read(call)?[0]),
            numel => {
                let what = format!("a tensor of {numel} elements is not one number");
                Err(call.shape_error(what).with_tensor("self", self))
            }
        }
    }

    fn read<T: Element>(&self, call: Call) -> Result<Vec<T>> {
        Ok(match call.download::<T::Stored>(self)? {
            Some(numbers) => numbers.into_iter().map(T::load).collect(),
            None => vec![T::load(T::Stored::default()); self.numel()],
        })
    }

    /// The same numbers on another device, in the graph; itself if it lies there already. Queued: the
    /// caller does not wait.
    ///
    /// # Errors
    ///
    /// If there is no memory for it, or nothing to copy because this device is dry and that is not.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let call = Call::here("to_device");
        if device == self.device() {
            return Ok(self.clone());
        }
        let copy = Self::uninit(call, self.shape().clone(), self.dtype(), device)?;
        call.launch_across(Copy, &copy, self)?;
        let from = self.device().clone();
        record(call, "ToCopyBackward", &[&copy], &[self], || Ok(Box::new(ToDeviceBackward(from))))?;
        Ok(copy)
    }

    /// The numbers in pinned memory of this device, outside the graph. Queued: the caller does not
    /// wait.
    ///
    /// # Errors
    ///
    /// If there is no pinned memory.
    #[track_caller]
    pub fn to_pinned(&self) -> Result<Pinned> {
        let call = Call::here("to_pinned");
        let pinned = Pinned::new(call, self.shape().clone(), self.dtype(), self.device())?;
        call.launch_pinned(Copy, self, &pinned, true)?;
        Ok(pinned)
    }

    /// A tensor of the numbers in pinned memory. Queued: the caller does not wait, and may drop the
    /// pinned memory, which is not reused before the copy is done.
    ///
    /// ```
    /// # use tonnage_tensor::{Device, Pinned, Tensor};
    /// let device = Device::host("64 MiB")?;
    /// let batch = Pinned::from_slice(&[1.0f32, 2.0, 3.0], [3], &device)?;
    /// let x = Tensor::from_pinned(&batch)?;
    /// drop(batch);
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    #[track_caller]
    pub fn from_pinned(pinned: &Pinned) -> Result<Self> {
        let call = Call::here("from_pinned");
        let shape = pinned.layout.shape().clone();
        let tensor = Self::uninit(call, shape, pinned.dtype, &pinned.device)?;
        call.launch_pinned(Copy, &tensor, pinned, false)?;
        Ok(tensor)
    }
}

/// Numbers in host memory from which and to which a device copies without the caller waiting.
#[derive(Debug)]
pub struct Pinned {
    device: Device,
    /// None for no bytes.
    block: Option<PinnedBlock>,
    dtype: DType,
    layout: Layout,
    uses: Mutex<Uses>,
}

impl Pinned {
    fn new(call: Call, shape: Shape, dtype: DType, device: &Device) -> Result<Self> {
        let bytes = shape.checked_numel().and_then(|numel| numel.checked_mul(dtype.size()));
        let (Some(bytes), Some(layout)) = (bytes, Layout::contiguous(shape.clone())) else {
            let error = call.shape_error("more elements than can be counted");
            return Err(error.with("shape", shape));
        };
        let block = match bytes {
            0 => None,
            _ => {
                let block = device.pinned().allocate(bytes as u64);
                Some(block.map_err(|error| call.pinned(error))?)
            }
        };
        Ok(Self { device: device.clone(), block, dtype, layout, uses: Mutex::default() })
    }

    /// These numbers, rows one after the other.
    ///
    /// # Errors
    ///
    /// If the shape has another number of elements, or if there is no pinned memory.
    #[track_caller]
    pub fn from_slice<T: Element>(
        numbers: &[T],
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Result<Self> {
        let (call, shape) = (Call::here("from_slice"), shape.into());
        call.check_filled(numbers.len(), &shape)?;
        let mut pinned = Self::new(call, shape, T::DTYPE, device)?;
        pinned.fill_from(call, numbers.iter().map(|it| it.store()))?;
        Ok(pinned)
    }

    /// Numbers by their bytes, in this machine's order, rows one after the other.
    ///
    /// # Errors
    ///
    /// If the shape has another number of bytes, or if there is no pinned memory.
    #[track_caller]
    pub fn from_bytes(
        bytes: &[u8],
        shape: impl Into<Shape>,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let (call, shape) = (Call::here("from_bytes"), shape.into());
        let needed = shape.checked_numel().and_then(|numel| numel.checked_mul(dtype.size()));
        if needed != Some(bytes.len()) {
            let error = call.shape_error(format!("{} bytes do not fill the shape", bytes.len()));
            return Err(error.with("shape", format_args!("{dtype}{shape}")));
        }
        Self::fill(shape, dtype, device, |into| {
            into.copy_from_slice(bytes);
            Ok(())
        })
    }

    /// Numbers whose bytes `fill` writes.
    #[track_caller]
    pub(crate) fn fill(
        shape: impl Into<Shape>,
        dtype: DType,
        device: &Device,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        let call = Call::here("from_bytes");
        let mut pinned = Self::new(call, shape.into(), dtype, device)?;
        let length = pinned.layout.numel() * dtype.size();
        fill(&mut pinned.in_block_mut(call)?[..length])?;
        Ok(pinned)
    }

    /// The numbers as bytes, after waiting for queued copies that write them.
    ///
    /// # Errors
    ///
    /// If the device failed; or on `dry`, which counts pinned memory, if this machine has not so many bytes.
    #[track_caller]
    pub fn bytes(&self) -> Result<&[u8]> {
        let call = Call::here("bytes");
        self.settle(call)?;
        let length = self.layout.numel() * self.dtype.size();
        Ok(&self.in_block(call)?[..length])
    }

    /// Overwrites the numbers, after waiting for queued copies that use them.
    ///
    /// # Errors
    ///
    /// If they are of another type or number, or if the device failed.
    #[track_caller]
    pub fn write<T: Element>(&mut self, numbers: &[T]) -> Result<()> {
        let call = Call::here("write");
        self.check::<T>(call)?;
        if numbers.len() != self.layout.numel() {
            let what = format!("{} numbers do not fill the shape", numbers.len());
            return Err(call.shape_error(what).with("shape", self.layout.shape()));
        }
        self.settle(call)?;
        self.fill_from(call, numbers.iter().map(|it| it.store()))
    }

    /// The numbers, after waiting for queued copies that write them.
    ///
    /// # Errors
    ///
    /// If they are of another type, or if the device failed; or on `dry`, which counts pinned memory, if this machine
    /// has not so many bytes.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let call = Call::here("to_vec");
        self.check::<T>(call)?;
        self.settle(call)?;
        let bytes = self.in_block(call)?;
        let size = size_of::<T::Stored>();
        Ok(bytes.chunks_exact(size).map(|bytes| T::load(T::Stored::from_bytes(bytes))).collect())
    }

    /// The sizes of its axes.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device it is for.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn check<T: Element>(&self, call: Call) -> Result<()> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        Err(call.dtype_error(format!("the elements are {}, not {}", self.dtype, T::DTYPE)))
    }

    fn settle(&self, call: Call) -> Result<()> {
        self.device.queue().settle(call, &self.uses)
    }

    /// What lies in its block.
    fn in_block(&self, call: Call) -> Result<&[u8]> {
        let Some(block) = &self.block else { return Ok(&[]) };
        block.try_as_slice().map_err(|error| call.pinned(error))
    }

    fn in_block_mut(&mut self, call: Call) -> Result<&mut [u8]> {
        let Some(block) = &mut self.block else { return Ok(&mut []) };
        block.try_as_mut_slice().map_err(|error| call.pinned(error))
    }

    fn fill_from<T: Stored>(&mut self, call: Call, numbers: impl Iterator<Item = T>) -> Result<()> {
        let places = self.in_block_mut(call)?.chunks_exact_mut(size_of::<T>());
        places.zip(numbers).for_each(|(place, number)| number.to_bytes(place));
        Ok(())
    }

    pub(crate) fn record_stream(&self, stream: StreamId) {
        if let Some(block) = &self.block {
            block.record_stream(stream);
        }
    }

    pub(crate) fn used(&self) -> Used<'_> {
        let start = self.block.as_ref().map(|block| block.pointer().cast::<u8>());
        let address = start.map_or(0, |start| start.expose_provenance() as u64);
        let (dtype, layout) = (self.dtype, self.layout.clone());
        Used { operand: Operand { dtype, layout, conj: false, address }, uses: &self.uses }
    }
}

#[cfg(test)]
mod tests {
    use tonnage_memory::with_stream;

    use super::*;
    use crate::testing::gradcheck;

    fn host() -> Device {
        Device::host("256 MiB").unwrap()
    }

    #[test]
    fn numbers_of_every_type_come_back() -> Result<()> {
        fn check<T: Element + PartialEq>(numbers: [T; 3]) -> Result<()> {
            let device = host();
            assert_eq!(Tensor::from_slice(&numbers, [3], &device)?.to_vec::<T>()?, numbers);
            let pinned = Pinned::from_slice(&numbers, [3], &device)?;
            assert_eq!(pinned.to_vec::<T>()?, numbers);
            assert_eq!(Tensor::from_pinned(&pinned)?.to_vec::<T>()?, numbers);
            Ok(())
        }
        use crate::{Bf16, Complex64, F16};
        check([1.5f32, -2.0, 0.0])?;
        check([1.5f64, -2.0, 0.0])?;
        check([1.5, -2.0, 0.0].map(Bf16::from_f32))?;
        check([1.5, -2.0, 0.0].map(F16::from_f32))?;
        check([1i64, i64::MIN, i64::MAX])?;
        check([1i32, i32::MIN, i32::MAX])?;
        check([1u8, 0, 255])?;
        check([true, false, true])?;
        check([(1.0, 2.0), (0.0, -1.0), (3.0, 0.5)].map(|(re, im)| Complex64::new(re, im)))
    }

    #[test]
    fn on_dry_pinned_numbers_that_no_machine_has_are_an_error_when_looked_at() -> Result<()> {
        let device = Device::dry("80 GiB").unwrap();
        let pinned =
            Pinned::new(Call::here("from_bytes"), Shape::from([1 << 58]), DType::F32, &device)?;
        let error = pinned.bytes().unwrap_err().to_string();
        assert!(error.contains("a dry device counts its pinned memory"), "{error}");
        assert!(pinned.to_vec::<f32>().is_err());
        Ok(())
    }

    #[test]
    fn items_are_converted_and_vectors_are_not() -> Result<()> {
        let device = host();
        let three = Tensor::from_slice(&[3i64], [1, 1], &device)?;
        assert_eq!((three.item::<f64>()?, three.item::<u8>()?), (3.0, 3));
        assert!(three.to_vec::<f32>().unwrap_err().to_string().contains("int64, not float32"));
        assert!(Tensor::zeros([2], &device)?.item::<f32>().is_err());
        let dry = Device::dry("1 GiB").unwrap();
        assert_eq!(Tensor::ones([2], &dry)?.to_vec::<f32>()?, [0.0, 0.0]);
        Ok(())
    }

    #[test]
    fn copies_between_devices_are_ordered_and_differentiable() -> Result<()> {
        let [one, two] = [host(), host()];
        for round in 0..50 {
            let x = Tensor::full([5_000], f64::from(round), (&one, DType::F64))?;
            let y = x.add(1.0)?.to_device(&two)?.mul(2.0)?;
            let z = y.to_device(&one)?;
            drop((x, y));
            assert_eq!(z.to_vec::<f64>()?, vec![f64::from(round + 1) * 2.0; 5_000]);
        }
        assert_eq!((one.memory().allocated(), two.memory().allocated()), (0, 0));
        gradcheck(&[&[3]], move |x| {
            let there = x[0].to_device(&two)?.sin()?;
            there.to_device(x[0].device())
        })
    }

    /// Two engines on one card stand for two cards: the same order, by streams of their own; only the copy itself is one
    /// within a card.
    #[test]
    fn copies_between_gpus_are_ordered_and_differentiable() -> Result<()> {
        if !crate::testing::has_gpu() {
            println!("skipped: TONNAGE_TEST_CUDA is not 1");
            return Ok(());
        }
        let [one, other] = [Device::cuda(0).unwrap(), Device::cuda(0).unwrap()];
        assert!(one != other);
        let (here, there) = (one.create_stream().unwrap(), other.create_stream().unwrap());
        let check = |round: u8| -> Result<()> {
            let size = 16 << 20;
            let x = Tensor::full([size], 0.0, &one)?;
            for _ in 0..40 {
                x.add_(f64::from(round))?;
            }
            let copy = x.to_device(&other)?;
            // Waits for the copy, which waits for the sums.
            x.fill_(-1.0)?;
            drop(x);
            drop(Tensor::full([size], -2.0, &one)?);
            let expected = 40.0 * f32::from(round);
            assert!(copy.to_vec::<f32>()?.iter().all(|it| *it == expected), "{round}");
            Ok(())
        };
        with_stream(&here, || with_stream(&there, || (0..10).try_for_each(check)))?;
        let x = Tensor::arange(0, 6, 1, (&one, DType::F32))?.requires_grad_(true)?;
        x.mul(2.0)?.to_device(&other)?.square()?.sum()?.backward()?;
        let grad = x.grad().unwrap();
        assert!(grad.device() == &one);
        assert_eq!(grad.to_vec::<f32>()?, [0.0, 8.0, 16.0, 24.0, 32.0, 40.0]);
        // Not in order: by way of this machine's memory.
        let turned = Tensor::arange(0, 6, 1, (&one, DType::I64))?.view([2, 3])?.t()?;
        assert_eq!(turned.to_device(&other)?.to_vec::<i64>()?, [0, 3, 1, 4, 2, 5]);
        Ok(())
    }

    #[test]
    fn opposite_copies_from_two_threads_do_not_wait_for_each_other_for_ever() {
        let devices = [host(), host()];
        std::thread::scope(|scope| {
            for (here, there) in [(0, 1), (1, 0)] {
                let (here, there) = (&devices[here], &devices[there]);
                scope.spawn(move || {
                    for _ in 0..200 {
                        Tensor::ones([64], here).unwrap().to_device(there).unwrap();
                    }
                });
            }
        });
        devices.iter().for_each(|device| device.synchronize().unwrap());
    }

    #[test]
    fn pinned_memory_outlives_its_owner_until_the_copy_is_done() -> Result<()> {
        let device = host();
        let side = device.create_stream().unwrap();
        for round in 0..20 {
            let numbers = vec![round as f32; 50_000];
            let x = with_stream(&side, || {
                let pinned = Pinned::from_slice(&numbers, [50_000], &device)?;
                Tensor::from_pinned(&pinned)
            })?;
            // Used on another stream than it was made on: ordered, and recorded.
            assert_eq!(x.add(1.0)?.to_vec::<f32>()?, vec![round as f32 + 1.0; 50_000]);
            let mut back = x.to_pinned()?;
            assert_eq!(back.to_vec::<f32>()?, numbers);
            back.write(&numbers)?;
        }
        Ok(())
    }
}
