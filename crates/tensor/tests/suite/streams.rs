//! Streams: asynchronous, ordered where memory is shared, never reused too early.

use std::sync::mpsc;
use std::time::Duration;

use tonnage_memory::{DeviceId, DeviceOptions, with_stream};
use tonnage_tensor::{DType, Device, Result, Tensor, current_device, set_device};

use crate::{computing, computing_with};

#[test]
fn work_on_several_streams_is_ordered_by_the_tensors_it_shares() -> Result<()> {
    let options = DeviceOptions { poison: true, ..DeviceOptions::default() };
    let device = computing_with("1 GiB", options);
    let side = device.create_stream().unwrap();
    for round in 0..50 {
        let x = Tensor::full([20_000], f64::from(round), (&device, DType::F64))?;
        let y = with_stream(&side, || x.add(1.0))?;
        // Behind the side stream's read.
        x.mul_(0.0)?;
        let z = y.mul(2.0)?;
        // Dropped while both streams may still use it.
        drop((x, y));
        let noise = Tensor::full([20_000], -1.0, (&device, DType::F64))?;
        assert_eq!(z.to_vec::<f64>()?, vec![f64::from(round + 1) * 2.0; 20_000], "{round}");
        drop(noise);
    }
    device.synchronize()?;
    Ok(())
}

#[test]
fn dropped_memory_is_reused_behind_the_work_that_uses_it() -> Result<()> {
    let device = computing("64 MiB");
    let mut sums = Vec::new();
    for round in 0..100 {
        // The same block every time, while earlier rounds are still queued.
        sums.push(Tensor::full([1 << 20], f64::from(round), &device)?.sum()?);
    }
    for (round, sum) in sums.iter().enumerate() {
        assert_eq!(sum.item::<f64>()?, round as f64 * f64::from(1 << 20));
    }
    assert!(device.memory().max_allocated() < 5 << 20);
    Ok(())
}

/// Memory that queued work on its block's stream still reads goes to a new tensor, whose first use is on
/// another stream.
#[test]
fn the_first_use_of_fresh_memory_on_another_stream_waits_for_the_work_of_its_last_owner()
-> Result<()> {
    const LENGTH: usize = 1 << 20;
    // Whose streams take closures.
    let device = Device::host("256 MiB").unwrap();
    let [own, other] = [0, 1].map(|_| device.create_stream().unwrap());
    for first_use in ["writes", "reads and writes", "is written by a copy"] {
        let x = with_stream(&own, || Tensor::ones([LENGTH], &device))?;
        own.synchronize().unwrap();
        let (open, gate) = mpsc::channel::<()>();
        own.launch(move || gate.recv().unwrap_or_default()).unwrap();
        // Behind the gate: the read of x; then its memory has the next owner.
        let (y, z) = with_stream(&own, || {
            let y = x.add(1.0)?;
            drop(x);
            Ok::<_, tonnage_tensor::Error>((y, Tensor::empty([LENGTH], &device)?))
        })?;
        with_stream(&other, || match first_use {
            "writes" => z.fill_(7.0),
            "reads and writes" => z.mul_(7.0),
            _ => z.copy_(&Tensor::full([LENGTH], 7.0, &device)?),
        })?;
        let (done, is_done) = mpsc::channel();
        other.launch(move || done.send(()).unwrap_or_default()).unwrap();
        // Time for a wrong order to show. A right one does not depend on it.
        assert!(
            is_done.recv_timeout(Duration::from_millis(200)).is_err(),
            "{first_use}: too early"
        );
        drop(open);
        assert_eq!(y.to_vec::<f32>()?, vec![2.0; LENGTH], "{first_use}");
        device.synchronize()?;
    }
    Ok(())
}

#[test]
fn threads_share_tensors() -> Result<()> {
    let device = computing("1 GiB");
    let x = Tensor::ones([1000], &device)?;
    let total: f32 = std::thread::scope(|scope| {
        let work = || -> Result<f32> {
            let mut y = x.clone();
            for _ in 0..50 {
                y = y.add(&x)?;
            }
            y.sum()?.item()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<Result<f32>>()
    })?;
    assert_eq!(total, 4.0 * 51_000.0);
    Ok(())
}

#[test]
fn several_devices_have_figures_of_their_own() -> Result<()> {
    let options = |id| DeviceOptions { id: DeviceId(id), ..DeviceOptions::default() };
    let devices = [0, 1].map(|id| Device::host_with("64 MiB", options(id)).unwrap());
    assert_eq!(current_device(), None);
    set_device(&devices[1]);
    let x = Tensor::ones([1000], &current_device().unwrap())?;
    assert_eq!(devices.each_ref().map(|it| it.memory().allocated()), [0, 4096]);
    let error = x.add(&Tensor::ones([1000], &devices[0])?).unwrap_err().to_string();
    assert!(error.contains("on host:1") && error.contains("to_device"), "{error}");
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_numbers_everywhere() -> Result<()> {
    let [one, two] = [0, 1].map(|_| computing("64 MiB"));
    let draw = |device: &Device| -> Result<_> {
        device.manual_seed(7);
        let first = Tensor::randn([10_001], device)?.to_vec::<f32>()?;
        let state = device.generator().state();
        let second = Tensor::rand([101], device)?.to_vec::<f32>()?;
        device.generator().set_state(state);
        assert_eq!(Tensor::rand([101], device)?.to_vec::<f32>()?, second, "after restoring");
        let integers = Tensor::randint(-3, 4, [1000], device)?.to_vec::<i64>()?;
        Ok((first, second, integers))
    };
    let (normal, uniform, integers) = draw(&one)?;
    assert_eq!((normal.clone(), uniform.clone(), integers.clone()), draw(&two)?);
    let mean = normal.iter().sum::<f32>() / normal.len() as f32;
    let variance = normal.iter().map(|it| it * it).sum::<f32>() / normal.len() as f32;
    assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    assert!(uniform.iter().all(|it| (0.0..1.0).contains(it)));
    assert!(
        (-3..4).all(|it| integers.contains(&it)) && integers.iter().all(|it| (-3..4).contains(it))
    );
    Ok(())
}
