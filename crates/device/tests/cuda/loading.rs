//! Finding the driver and its devices, or saying why not.

use crate::support::*;
use tonnage_device::DeviceError;
use tonnage_device::cuda::{Cuda, Driver, devices};
use tonnage_fake_cuda::control;

#[test]
fn a_missing_driver_is_named_in_one_sentence() {
    // SAFETY: there is no such file.
    let error = unsafe { Driver::load_from("/nonexistent/libcuda.so.1") }.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(
            "no CUDA driver was found: /nonexistent/libcuda.so.1 cannot be opened (/nonexistent"
        ),
        "{text}"
    );
    assert!(text.ends_with("Install NVIDIA's driver, or use the host or dry device"), "{text}");
}

#[test]
fn a_library_that_is_no_driver_is_refused_by_the_function_it_lacks() {
    // SAFETY: this process runs on the C library already.
    let error = unsafe { Driver::load_from("libc.so.6") }.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("libc.so.6 has no cuInit: it is not a CUDA driver"), "{text}");
}

#[test]
fn a_driver_without_devices_does_not_start() {
    let fake = fake();
    fake.control(control::DEVICES, 0, 0);
    let error = load(&fake).unwrap_err();
    assert_eq!(
        error,
        DeviceError::Driver {
            call: "cuInit",
            code: 100,
            message: "no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)".into()
        }
    );
}

#[test]
fn a_wrong_ordinal_is_told_how_many_devices_there_are() {
    let fake = fake();
    let text = |ordinal| open(&fake, ordinal).unwrap_err().to_string();
    assert_eq!(text(2), "open: there is no cuda:2: the driver has 2 devices, cuda:0 to cuda:1");
    assert!(text(u32::MAX).contains("there is no cuda:4294967295"));
    assert_nothing_left(&fake, "nothing was opened");
    fake.control(control::DEVICES, 1, 0);
    assert_eq!(text(1), "open: there is no cuda:1: the driver has one device, cuda:0");
}

#[test]
fn devices_are_listed_with_their_properties() {
    let fake = fake();
    fake.set_capacity(1, 24 << 30);
    let driver = load(&fake).unwrap();
    assert_eq!(driver.version(), Ok(13_000));
    let listed = driver.devices().unwrap();
    let names: Vec<_> = listed.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["Fake CUDA device 0", "Fake CUDA device 1"]);
    assert_eq!(listed[1].total, 24 << 30);
    assert_eq!(listed[1].id, tonnage_events::DeviceId(1));
    assert_eq!(listed[1].compute_capability, (9, 0));
    assert_eq!(listed[1].pci_bus_id, "0000:1c:00.0");
    assert!(listed[1].virtual_memory);
    assert_eq!(Cuda::open_with(driver, 1).unwrap().properties(), &listed[1]);
    assert_nothing_left(&fake, "closed");
}

#[test]
fn a_code_without_words_keeps_its_number() {
    let fake = fake();
    fake.fail_after(0, 4242);
    let error = load(&fake).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cuInit failed with code 4242: the driver has no words for this code"
    );
}

#[test]
fn the_machines_own_driver_is_found_or_missed_without_a_panic() {
    match devices() {
        Ok(devices) => println!("{devices:#?}"),
        Err(error) => println!("{error}"),
    }
}
