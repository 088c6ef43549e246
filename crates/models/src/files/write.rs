//! Writing safetensors files: which tensor goes to which file, and where in it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

use safetensors::Dtype as DiskType;
use safetensors::tensor::{Metadata, TensorInfo};

use super::atomic::{self, Unfinished};
use super::element::Stored;
use super::mapped::{INDEX_FILE, MappedTensors, SINGLE_FILE, read_index};
use crate::error::{Error, Result};
use crate::layout::{Entry, Naming};

/// Takes the bytes of a tensor by its name, in any order.
pub(super) type Sink<'a> = dyn FnMut(&str, &[u8]) -> Result<()> + 'a;

/// Hands all tensors that are not carried to a sink.
pub(super) type Feed<'a, E> = dyn FnMut(&mut Sink<'_>) -> Result<(), E> + 'a;

/// One tensor to be written.
struct Output<'a> {
    dtype: DiskType,
    dims: &'a [usize],
    /// Bytes of another part of the model, as they were read; the others are fed.
    carried: Option<&'a [u8]>,
}

/// Tensors to be written, by name.
pub(super) struct Outputs<'a> {
    tensors: BTreeMap<&'a str, Output<'a>>,
}

impl<'a> Outputs<'a> {
    /// The tensors of a table, in one number type.
    pub(super) fn of(entries: &'a [Entry], stored: Stored) -> Self {
        let pieces = entries.iter().flat_map(|entry| &entry.pieces);
        let output = |dims| Output {
            dtype: stored.disk(),
            dims,
            carried: None,
        };
        let tensors = pieces.map(|piece| (&*piece.name, output(&*piece.dims)));
        Self {
            tensors: tensors.collect(),
        }
    }

    /// Adds the tensors of `source` that belong to other parts of the model.
    pub(super) fn carry(&mut self, source: &'a MappedTensors) {
        for (name, info) in source
            .iter()
            .filter(|(name, _)| Naming::is_other_part(name))
        {
            let bytes = source.bytes(name).expect("the source has what it lists");
            self.tensors.entry(name).or_insert_with(|| Output {
                dtype: info.dtype,
                dims: &info.shape,
                carried: Some(bytes),
            });
        }
    }

    /// Writes one file with all tensors.
    pub(super) fn write_file<E: From<Error>>(
        &self,
        path: &Path,
        feed: &mut Feed<'_, E>,
    ) -> Result<(), E> {
        let all: Vec<&str> = self.tensors.keys().copied().collect();
        let mut files = self.fill(&[(path, &all)], feed)?;
        Ok(files.remove(0).finish()?)
    }

    /// Writes the weights of the folder `dir`, cut into files as `source` is. What was there stays until all of them are complete.
    pub(super) fn write_folder<E: From<Error>>(
        &self,
        dir: &Path,
        source: Option<&MappedTensors>,
        feed: &mut Feed<'_, E>,
    ) -> Result<(), E> {
        let (single, index) = (dir.join(SINGLE_FILE), dir.join(INDEX_FILE));
        let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for name in self.tensors.keys() {
            let known = source.and_then(|source| source.file_of(name));
            let first = source.and_then(MappedTensors::first_file);
            let file = known.or(first).unwrap_or(SINGLE_FILE);
            files.entry(file).or_default().push(name);
        }
        // An index that cannot be read names no files that would be in the way.
        let old = read_index(&index).unwrap_or_default();
        // A reader takes the single file before an index, and an index for whole. So whatever interrupts this, it finds the old
        // weights, the new ones, or none.
        if files.keys().eq(&[SINGLE_FILE]) {
            self.write_file(&single, feed)?;
            remove(&index)?;
        } else {
            let paths: Vec<_> = files.keys().map(|file| dir.join(file)).collect();
            let parts = paths.iter().zip(files.values());
            let parts: Vec<(&Path, &Vec<&str>)> = parts.map(|(path, it)| (&**path, it)).collect();
            let parts = self.fill(&parts, feed)?;
            remove(&index)?;
            parts.into_iter().try_for_each(Unfinished::finish)?;
            remove(&single)?;
            self.write_index(&index, &files)?;
        }
        // Some readers take every file of weights that they find.
        let stale = |file: &&String| !files.contains_key(file.as_str()) && is_weights(file);
        let mut stale = old.iter().filter(stale);
        Ok(stale.try_for_each(|file| remove(&dir.join(file)))?)
    }

    fn write_index(&self, path: &Path, files: &BTreeMap<&str, Vec<&str>>) -> Result<()> {
        let by_name = files
            .iter()
            .flat_map(|(file, names)| names.iter().map(move |name| (*name, *file)));
        let map: BTreeMap<&str, &str> = by_name.collect();
        let total: usize = self.tensors.values().map(Output::size).sum();
        let text = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
        atomic::write(path, |file| writeln!(file, "{text:#}"))
    }

    /// Files of these tensors, complete but for their names.
    fn fill<E: From<Error>>(
        &self,
        parts: &[(&Path, &Vec<&str>)],
        feed: &mut Feed<'_, E>,
    ) -> Result<Vec<Unfinished>, E> {
        let mut files = Vec::with_capacity(parts.len());
        let mut places: HashMap<&str, (usize, u64)> = HashMap::new();
        for (number, (path, names)) in parts.iter().enumerate() {
            let mut file = Unfinished::begin(path)?;
            // Offsets follow the names; `transformers` sorts them too.
            let mut sorted = (*names).clone();
            sorted.sort_unstable();
            let header = self.header(&sorted);
            file.put(0, &(header.len() as u64).to_le_bytes())?;
            file.put(8, &header)?;
            let mut at = 8 + header.len() as u64;
            for name in sorted {
                let output = &self.tensors[name];
                if let Some(bytes) = output.carried {
                    file.put(at, bytes)?;
                }
                places.insert(name, (number, at));
                at += output.size() as u64;
            }
            files.push(file);
        }
        feed(&mut |name, bytes| {
            let (number, at) = places[name];
            files[number].put(at, bytes)
        })?;
        Ok(files)
    }

    /// The header as JSON, padded so that the data begins at a multiple of eight bytes.
    fn header(&self, names: &[&str]) -> Vec<u8> {
        let mut end = 0;
        let described = names.iter().map(|name| {
            let output = &self.tensors[name];
            let start = end;
            end += output.size();
            let info = TensorInfo {
                dtype: output.dtype,
                shape: output.dims.to_vec(),
                data_offsets: (start, end),
            };
            ((*name).to_owned(), info)
        });
        // `transformers` refuses a file that does not name its framework.
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(format), described.collect())
            .expect("offsets follow each other and fit the shapes");
        let mut header = serde_json::to_vec(&metadata).expect("names, numbers and lists are JSON");
        header.resize(header.len().next_multiple_of(8), b' ');
        header
    }
}

impl Output<'_> {
    /// Bytes of the tensor.
    fn size(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// Whether a file that an index names is one of weights, and not something that it should never have named.
fn is_weights(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|it| it == "safetensors")
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
