//! Tensors in files: the safetensors format, in and out.
//!
//! In:  names and tensors, or a file.
//! Out: a file, or tensors on a device.
//!
//! ```
//! use tonnage_tensor::nn::{Linear, Module};
//! use tonnage_tensor::{Device, safetensors};
//!
//! let device = Device::host("64 MiB")?;
//! let model = Linear::new(4, 2, &device)?;
//! let folder = std::env::temp_dir().join(format!("tonnage-doc-{}", std::process::id()));
//! std::fs::create_dir_all(&folder)?;
//! let path = folder.join("model.safetensors");
//! safetensors::save(&path, &model.state_dict())?;
//! safetensors::File::open(&path)?.load_into(&model)?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A file is not trusted: its header is bounded and checked against the file's length before anything
//! is allocated, and tensors are read one at a time, straight into pinned memory.

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo};

use crate::autograd::no_grad;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Call, Error, ErrorKind, Result};
use crate::nn::{Module, matching};
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::transfer::Pinned;

/// The longest header that the format allows.
const LONGEST_HEADER: u64 = 100_000_000;

/// The format's own alignment of the header.
const ALIGNMENT: usize = 8;

/// The format stores numbers with the least significant byte first, as this machine must.
const _: () = assert!(cfg!(target_endian = "little"));

fn stored_as(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
        DType::Complex64 => Dtype::C64,
    }
}

fn loaded_as(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|it| stored_as(*it) == dtype)
}

/// Says what went wrong with which file.
fn failed(call: Call, path: &Path, what: impl Into<String>) -> Error {
    call.error(ErrorKind::File, what).with("file", path.display())
}

/// Writes tensors with their names. Each is copied to the host on its own, so that no second model is
/// in memory. A file that was there before stays until the new one is complete.
///
/// # Errors
///
/// If two have the same name, or if the file cannot be written.
#[track_caller]
pub fn save(path: impl AsRef<Path>, tensors: &[(String, Tensor)]) -> Result<()> {
    let (call, path) = (Call::here("save"), path.as_ref());
    let mut names = HashSet::new();
    if let Some((twice, _)) = tensors.iter().find(|(name, _)| !names.insert(name)) {
        return Err(failed(call, path, format!("two tensors are named {twice}")));
    }
    let mut order: Vec<&(String, Tensor)> = tensors.iter().collect();
    // Wide elements first, as the format's own writers do, so that all are aligned.
    order.sort_by(|(a, x), (b, y)| y.dtype().size().cmp(&x.dtype().size()).then(a.cmp(b)));
    let mut end = 0;
    let infos = order.iter().map(|(name, tensor)| {
        let start = end;
        end += tensor.numel() * tensor.dtype().size();
        let (dtype, shape) = (stored_as(tensor.dtype()), tensor.shape().to_vec());
        (name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let header = Metadata::new(None, infos.collect())
        .map_err(|error| failed(call, path, error.to_string()))
        .and_then(|header| {
            serde_json::to_vec(&header).map_err(|error| failed(call, path, error.to_string()))
        })?;
    let partial = partial(path);
    let written = write(call, &partial, header, &order)
        .and_then(|()| fs::rename(&partial, path).map_err(|error| system(call, path, &error)));
    if written.is_err() {
        // What is half written is of no use; that it cannot be removed is no news.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// A name beside the file, so that renaming it is one step.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    PathBuf::from(name)
}

fn system(call: Call, path: &Path, error: &io::Error) -> Error {
    failed(call, path, error.to_string())
}

fn write(
    call: Call,
    path: &Path,
    mut header: Vec<u8>,
    tensors: &[&(String, Tensor)],
) -> Result<()> {
    let fails = |error: io::Error| system(call, path, &error);
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    let mut file = BufWriter::new(fs::File::create(path).map_err(fails)?);
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(fails)?;
    file.write_all(&header).map_err(fails)?;
    for (_, tensor) in tensors {
        file.write_all(tensor.to_pinned()?.bytes()?).map_err(fails)?;
    }
    file.into_inner().map_err(|error| fails(error.into_error()))?.sync_all().map_err(fails)
}

/// A file of tensors, of which the header was read and checked.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    file: Mutex<fs::File>,
    header: Metadata,
    /// Where the first tensor begins.
    start: u64,
}

impl File {
    /// Reads the header.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is no such file, or is shorter or longer than its header says.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (call, path) = (Call::here("open"), path.as_ref());
        let fails = |error: io::Error| system(call, path, &error);
        let mut file = fs::File::open(path).map_err(fails)?;
        let length = file.metadata().map_err(fails)?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(fails)?;
        let size = u64::from_le_bytes(size);
        if size > LONGEST_HEADER || size > length.saturating_sub(8) {
            let what = format!("no safetensors file: a header of {size} bytes in {length}");
            return Err(failed(call, path, what));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(fails)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|error| failed(call, path, format!("the header is wrong: {error}")))?;
        let start = 8 + size;
        if start.checked_add(header.data_len() as u64) != Some(length) {
            let what =
                format!("the header tells of {} bytes, not {}", header.data_len(), length - start);
            return Err(failed(call, path, what));
        }
        Ok(Self { path: path.to_owned(), file: Mutex::new(file), header, start })
    }

    /// The tensors' names, as they lie in the file.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// The shape and type of a tensor; none if there is no such tensor, or no such type here.
    #[must_use]
    pub fn info(&self, name: &str) -> Option<(Shape, DType)> {
        let info = self.header.info(name)?;
        Some((Shape::from(&info.shape[..]), loaded_as(info.dtype)?))
    }

    /// One tensor.
    ///
    /// # Errors
    ///
    /// If there is none of this name, its type is unknown here, or it cannot be read.
    #[track_caller]
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        let call = Call::here("tensor");
        let Some(info) = self.header.info(name) else {
            return Err(failed(call, &self.path, format!("there is no tensor named {name}")));
        };
        let Some(dtype) = loaded_as(info.dtype) else {
            let what = format!("{name} is {:?}, which is no element type here", info.dtype);
            return Err(failed(call, &self.path, what));
        };
        let (first, end) = info.data_offsets;
        let fails = |error: io::Error| system(call, &self.path, &error);
        let pinned = Pinned::fill(&info.shape[..], dtype, device, |into| {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(self.start + first as u64)).map_err(fails)?;
            debug_assert_eq!(into.len(), end - first);
            file.read_exact(into).map_err(fails)
        })?;
        Tensor::from_pinned(&pinned)
    }

    /// All tensors.
    ///
    /// # Errors
    ///
    /// As for [`tensor`](Self::tensor).
    #[track_caller]
    pub fn tensors(&self, device: &Device) -> Result<Vec<(String, Tensor)>> {
        let load = |name: String| {
            let tensor = self.tensor(&name, device)?;
            Ok((name, tensor))
        };
        self.names().into_iter().map(load).collect()
    }

    /// Overwrites a module's parameters and buffers with the file's tensors, converted to their types.
    /// One after the other: beside the model there is one tensor at a time.
    ///
    /// # Errors
    ///
    /// If names or shapes differ: nothing is changed then. Or if a tensor cannot be read.
    #[track_caller]
    pub fn load_into(&self, module: &(impl Module + ?Sized)) -> Result<()> {
        let call = Call::here("load_into");
        let names = self.names();
        let (names, kind) = (names.iter().map(|it| &**it), ErrorKind::File);
        let places = matching((call, kind), module.state_dict(), names, |it| self.info(it))
            .map_err(|error| error.with("file", self.path.display()))?;
        for (name, place) in &places {
            let tensor = self.tensor(name, place.device())?;
            no_grad(|| place.copy_(&tensor))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Linear, Sequential};
    use crate::{Bf16, Complex64};

    fn host() -> Device {
        Device::host("64 MiB").unwrap()
    }

    #[test]
    fn every_type_and_layout_comes_back() -> Result<()> {
        let (device, folder) = (host(), tempfile::tempdir().unwrap());
        let path = folder.path().join("all.safetensors");
        let x = Tensor::randn([3, 4], &device)?;
        let mut all: Vec<(String, Tensor)> = Vec::new();
        for dtype in DType::ALL {
            all.push((dtype.name().to_owned(), x.to(dtype)?));
        }
        all.push(("turned".to_owned(), x.t()?));
        all.push(("empty".to_owned(), Tensor::zeros([0, 3], &device)?));
        all.push(("number".to_owned(), Tensor::ones((), &device)?));
        save(&path, &all)?;
        let file = File::open(&path)?;
        assert_eq!(file.names().len(), 12);
        for (name, tensor) in &all {
            let loaded = file.tensor(name, &device)?;
            assert_eq!((loaded.shape(), loaded.dtype()), (tensor.shape(), tensor.dtype()));
            let pinned = |it: &Tensor| it.to_pinned()?.bytes().map(<[u8]>::to_vec);
            assert_eq!(pinned(&loaded)?, pinned(tensor)?, "{name}");
        }
        assert_eq!(file.tensor("turned", &device)?.to_vec::<f32>()?, x.t()?.to_vec::<f32>()?);
        assert!(file.tensor("bfloat16", &device)?.to_vec::<Bf16>().is_ok());
        assert!(file.tensor("complex64", &device)?.to_vec::<Complex64>().is_ok());
        // The format's own reader agrees.
        let bytes = fs::read(&path).unwrap();
        let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.tensor("float32").unwrap().data(), x.to_pinned()?.bytes()?);
        Ok(())
    }

    #[test]
    fn a_model_is_loaded_whole_or_not_at_all() -> Result<()> {
        let (device, folder) = (host(), tempfile::tempdir().unwrap());
        let path = folder.path().join("model.safetensors");
        let model = |width| -> Result<Sequential> {
            Ok(Sequential::new()
                .then(Linear::new(4, width, &device)?)
                .then(Linear::new(width, 2, &device)?))
        };
        let [one, two, other] = [model(8)?, model(8)?, model(9)?];
        save(&path, &one.named_parameters())?;
        let file = File::open(&path)?;
        file.load_into(&two)?;
        for (a, b) in one.parameters().iter().zip(two.parameters()) {
            assert_eq!(a.to_vec::<f32>()?, b.to_vec::<f32>()?);
        }
        let before = other.parameters()[3].to_vec::<f32>()?;
        let error = file.load_into(&other).unwrap_err().to_string();
        assert!(error.contains("0.weight has another shape"), "{error}");
        assert_eq!(other.parameters()[3].to_vec::<f32>()?, before);
        let error = file.load_into(&one.clone().then(Linear::new(2, 2, &device)?)).unwrap_err();
        assert!(error.to_string().contains("no tensor named 2.weight"), "{error}");
        let twice = [one.named_parameters(), one.named_parameters()].concat();
        assert!(save(&path, &twice).unwrap_err().to_string().contains("two tensors are named"));
        Ok(())
    }

    #[test]
    fn files_that_lie_are_refused_before_anything_is_allocated() -> Result<()> {
        let (device, folder) = (host(), tempfile::tempdir().unwrap());
        let path = folder.path().join("bad.safetensors");
        let file = |header: &str, data: usize| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(header.as_bytes());
            bytes.resize(bytes.len() + data, 0);
            bytes
        };
        let deep = "[".repeat(10_000);
        let tensor = |shape: &str, offsets: &str| {
            format!(r#"{{"x":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let wrong = [
            Vec::new(),
            vec![1, 2, 3],
            u64::MAX.to_le_bytes().to_vec(),
            file("", 0),
            file("{\"x\": 1}", 0),
            file(&deep, 0),
            file(&tensor("[2]", "[0,8]"), 7),
            file(&tensor("[2]", "[0,8]"), 9),
            file(&tensor("[2]", "[8,16]"), 16),
            file(&tensor("[2]", "[0,4]"), 4),
            file(&tensor("[2]", "[8,0]"), 8),
            file(&tensor("[4611686018427387904,4]", "[0,0]"), 0),
            file(&tensor("[-1]", "[0,0]"), 0),
        ];
        for (place, bytes) in wrong.iter().enumerate() {
            fs::write(&path, bytes).unwrap();
            let error = File::open(&path).expect_err(&format!("file {place}"));
            assert_eq!(error.kind(), &ErrorKind::File, "file {place}: {error}");
            assert!(error.to_string().contains("bad.safetensors"), "{error}");
        }
        fs::write(&path, file(&tensor("[2]", "[0,8]").replace("F32", "I32"), 8)).unwrap();
        let good = File::open(&path)?;
        assert_eq!(good.tensor("x", &device)?.to_vec::<i32>()?, [0, 0]);
        assert!(good.tensor("y", &device).is_err());
        fs::write(&path, file(&tensor("[8]", "[0,8]").replace("F32", "I8"), 8)).unwrap();
        let error = File::open(&path)?.tensor("x", &device).unwrap_err().to_string();
        assert!(error.contains("I8"), "{error}");
        assert!(File::open(folder.path().join("none")).is_err());
        Ok(())
    }
}
