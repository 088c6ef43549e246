//! The safetensors files of one model folder, mapped into memory and checked as files: nothing about the model is known here.
//!
//! A folder has either `model.safetensors` or `model.safetensors.index.json` with the files that it names; where both are there the
//! single file counts, as in `transformers`. Pages are read when a tensor is, and let go of once its values are elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Mmap, UncheckedAdvice};
use safetensors::tensor::{Metadata, SafeTensorError, SafeTensors, TensorInfo};
use serde_json::Value;

use crate::error::{Error, Result};

/// Name of the file of a checkpoint that is not sharded.
pub(crate) const SINGLE_FILE: &str = "model.safetensors";
/// Name of the index of a sharded checkpoint.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";

/// All tensors of a model folder, by name.
pub(crate) struct MappedTensors {
    files: Vec<MappedFile>,
    /// Where each tensor is: file, description.
    tensors: BTreeMap<String, (usize, TensorInfo)>,
}

impl MappedTensors {
    /// Maps the weight files of the folder `dir` and reads their headers.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let single = dir.join(SINGLE_FILE);
        let index = dir.join(INDEX_FILE);
        let files = if single.exists() {
            vec![MappedFile::open(&single)?]
        } else if index.exists() {
            read_index(&index)?
                .into_iter()
                .map(|name| MappedFile::open(&dir.join(name)))
                .collect::<Result<_>>()?
        } else {
            // A folder that is not there is a plainer answer than one without weights.
            std::fs::metadata(dir).map_err(Error::io("open", dir))?;
            return Err(Error::NoWeights {
                dir: dir.to_path_buf(),
            });
        };
        Self::of_files(files)
    }

    /// Maps one file by itself and reads its header.
    pub(crate) fn open_file(path: &Path) -> Result<Self> {
        Self::of_files(vec![MappedFile::open(path)?])
    }

    fn of_files(files: Vec<MappedFile>) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            for (name, info) in file.header.tensors() {
                if let Some((first, _)) = tensors.insert(name.clone(), (number, info.clone())) {
                    let other = files[first].path.display();
                    return Err(file.corrupt(format!("tensor {name} is also in {other}")));
                }
            }
        }
        Ok(Self { files, tensors })
    }

    pub(crate) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|(_, info)| info)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.tensors.keys().map(String::as_str)
    }

    /// The name of the file that holds a tensor.
    pub(crate) fn file_of(&self, name: &str) -> Option<&str> {
        let (file, _) = self.tensors.get(name)?;
        self.files[*file].path.file_name()?.to_str()
    }

    /// The first of the files, by name.
    pub(crate) fn first_file(&self) -> Option<&str> {
        self.files.first()?.path.file_name()?.to_str()
    }

    /// Paths of the files, and their bytes.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, usize)> {
        let files = self.files.iter();
        files.map(|file| (file.path.as_path(), file.map.len()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors
            .iter()
            .map(|(name, (_, info))| (name.as_str(), info))
    }

    /// The bytes of a tensor; `None` if there is none of that name.
    pub(crate) fn bytes(&self, name: &str) -> Option<&[u8]> {
        let (file, info) = self.tensors.get(name)?;
        let file = &self.files[*file];
        let (start, end) = info.data_offsets;
        Some(&file.map[file.data_start + start..file.data_start + end])
    }

    /// Lets go of some bytes of a tensor: as long as their pages are mapped they count as memory of this process.
    ///
    /// Reading them again is sound, and only slower.
    pub(crate) fn let_go(&self, name: &str, bytes: Range<usize>) {
        let Some((file, info)) = self.tensors.get(name) else {
            return;
        };
        let file = &self.files[*file];
        let begin = file.data_start + info.data_offsets.0 + bytes.start;
        // SAFETY: the map is read-only, so no page has anything that the file has not, and a page that is read again is read
        // from the file. References into it see the same bytes before and after.
        let advised = unsafe {
            file.map
                .unchecked_advise_range(UncheckedAdvice::DontNeed, begin, bytes.len())
        };
        // Only advice: a system that does not take it keeps the pages until it needs the room.
        drop(advised);
    }

    /// Whether two tensors have the same type, shape and bytes.
    pub(crate) fn same(&self, left: &str, right: &str) -> bool {
        let (Some(a), Some(b)) = (self.info(left), self.info(right)) else {
            return false;
        };
        let (Some(left_bytes), Some(right_bytes)) = (self.bytes(left), self.bytes(right)) else {
            return false;
        };
        let same_chunk = |(number, (x, y)): (usize, (&[u8], &[u8]))| {
            let same = x == y;
            for name in [left, right] {
                self.let_go(name, number * WINDOW..number * WINDOW + x.len());
            }
            same
        };
        let chunks = left_bytes.chunks(WINDOW).zip(right_bytes.chunks(WINDOW));
        a.dtype == b.dtype && a.shape == b.shape && chunks.enumerate().all(same_chunk)
    }
}

/// Bytes that are read of a tensor before their pages are let go of.
pub(crate) const WINDOW: usize = 1 << 20;

/// One safetensors file.
struct MappedFile {
    path: PathBuf,
    map: Mmap,
    header: Metadata,
    /// Byte at which the data begins: offsets in the header count from there.
    data_start: usize,
}

/// The header's length comes first, in this many bytes.
const LENGTH_BYTES: usize = 8;

impl MappedFile {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let length = file.metadata().map_err(Error::io("read", path))?.len();
        if length < LENGTH_BYTES as u64 {
            // The system refuses to map an empty file with a message that says nothing.
            let problem = format!("it has {length} bytes, too few for a header");
            return Err(Error::Corrupt {
                path: path.to_path_buf(),
                problem,
            });
        }
        // SAFETY: the map is only read, and only through this struct, which owns it. Another process that shortens the file while
        // it is mapped ends this one with a signal; weights are replaced by renaming, which leaves the old file whole.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io("map", path))?;
        match SafeTensors::read_metadata(&map) {
            Ok((header_length, header)) => Ok(Self {
                path: path.to_path_buf(),
                data_start: LENGTH_BYTES + header_length,
                map,
                header,
            }),
            Err(error) => Err(Error::Corrupt {
                path: path.to_path_buf(),
                problem: describe(&error, &map),
            }),
        }
    }

    fn corrupt(&self, problem: String) -> Error {
        Error::Corrupt {
            path: self.path.clone(),
            problem,
        }
    }
}

/// The library's message, with the byte counts for the two that mean a file cut short or grown.
fn describe(error: &SafeTensorError, bytes: &[u8]) -> String {
    let length = u64::from_le_bytes(*bytes.first_chunk().expect("the length was checked"));
    let have = bytes.len();
    match error {
        SafeTensorError::InvalidHeaderLength => {
            format!("its header should have {length} bytes, but the whole file has {have}")
        }
        SafeTensorError::HeaderTooLarge => {
            format!("its first 8 bytes give a header of {length} bytes, more than can be")
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            let header = bytes
                .get(LENGTH_BYTES..LENGTH_BYTES + length as usize)
                .unwrap_or_default();
            match data_end(header) {
                Some(end) => {
                    let want = end
                        .saturating_add(LENGTH_BYTES as u64)
                        .saturating_add(length);
                    format!("its header describes a file of {want} bytes, but it has {have}")
                }
                None => error.to_string(),
            }
        }
        other => other.to_string(),
    }
}

/// Largest data offset in a header.
fn data_end(header: &[u8]) -> Option<u64> {
    let header: Value = serde_json::from_slice(header).ok()?;
    let ends = header
        .as_object()?
        .values()
        .filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    ends.max()
}

/// The names of the weight files in an index, each once.
pub(crate) fn read_index(path: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    let index: Value = serde_json::from_str(&text).map_err(|e| Error::Json {
        origin: path.display().to_string(),
        message: e.to_string(),
    })?;
    let refuse = |problem: String| Error::Index {
        path: path.to_path_buf(),
        problem,
    };
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(refuse("it has no weight_map".to_owned()));
    };
    if map.is_empty() {
        return Err(refuse("its weight_map is empty".to_owned()));
    }
    map.iter()
        .map(|(tensor, file)| match file.as_str() {
            // A name with folders in it could point anywhere.
            Some(name) if Path::new(name).file_name().is_some_and(|last| last == name) => {
                Ok(name.to_owned())
            }
            _ => Err(refuse(format!(
                "the file of {tensor} must be a plain file name, found {file}"
            ))),
        })
        .collect()
}
