//! Writing safetensors files: which tensor goes to which file, and their bytes, one tensor after another.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::Path;

use ferrotune_pjrt::HostArray;
use safetensors::Dtype as DiskType;
use safetensors::tensor::{Metadata, TensorInfo};

use super::atomic;
use super::element::{Stored, to_disk};
use super::mapped::{INDEX_FILE, MappedTensors, SINGLE_FILE, read_index};
use crate::error::{Error, Result};
use crate::layout::{Entry, Naming, Piece};

pub(super) type Arrays<'a> = HashMap<&'a str, &'a HostArray>;

/// One tensor to be written.
struct Output<'a> {
    dtype: DiskType,
    dims: Vec<usize>,
    content: Content<'a>,
}

enum Content<'a> {
    /// Pieces of parameters: the row of the table, and which piece of it.
    Pieces(Vec<(&'a Entry, usize)>),
    /// Bytes of another part of the model, as they were read.
    Carried(&'a [u8]),
}

/// Tensors to be written, by name.
pub(super) struct Outputs<'a> {
    stored: Stored,
    tensors: BTreeMap<&'a str, Output<'a>>,
}

impl<'a> Outputs<'a> {
    /// All parameters, in one number type.
    pub(super) fn of(entries: impl Iterator<Item = &'a Entry>, stored: Stored) -> Self {
        let mut tensors = BTreeMap::new();
        let rows = entries.flat_map(|entry| {
            let numbered = entry.pieces.iter().enumerate();
            numbered.map(move |(number, piece)| (entry, number, piece))
        });
        for (entry, number, piece) in rows {
            let output = tensors.entry(&*piece.name).or_insert_with(|| Output {
                dtype: stored.disk(),
                dims: piece.dims.clone(),
                content: Content::Pieces(Vec::new()),
            });
            if let Content::Pieces(pieces) = &mut output.content {
                pieces.push((entry, number));
            }
        }
        Self { stored, tensors }
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
                dims: info.shape.clone(),
                content: Content::Carried(bytes),
            });
        }
    }

    /// Writes one file with all tensors.
    pub(super) fn write_file(&self, path: &Path, arrays: &Arrays<'_>) -> Result<()> {
        let all: Vec<&str> = self.tensors.keys().copied().collect();
        self.write(path, &all, arrays)
    }

    /// Writes the weights of the folder `dir`, cut into files as `source` is.
    pub(super) fn write_folder(
        &self,
        dir: &Path,
        source: Option<&MappedTensors>,
        arrays: &Arrays<'_>,
    ) -> Result<()> {
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
            self.write_file(&single, arrays)?;
            remove(&index)?;
        } else {
            remove(&index)?;
            for (file, names) in &files {
                self.write(&dir.join(file), names, arrays)?;
            }
            remove(&single)?;
            self.write_index(&index, &files)?;
        }
        // Some readers take every file of weights that they find.
        let stale = |file: &&String| !files.contains_key(file.as_str()) && is_weights(file);
        let mut stale = old.iter().filter(stale);
        stale.try_for_each(|file| remove(&dir.join(file)))
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

    /// Streams a file of these tensors: only one at a time is in memory.
    fn write(&self, path: &Path, names: &[&str], arrays: &Arrays<'_>) -> Result<()> {
        // Offsets follow the names; `transformers` sorts them too.
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        let header = self.header(&sorted);
        atomic::write(path, |file| {
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(&header)?;
            sorted
                .iter()
                .try_for_each(|name| self.write_tensor(file, &self.tensors[name], arrays))
        })
    }

    fn write_tensor(
        &self,
        file: &mut impl Write,
        output: &Output<'_>,
        arrays: &Arrays<'_>,
    ) -> io::Result<()> {
        match &output.content {
            Content::Carried(bytes) => file.write_all(bytes),
            Content::Pieces(pieces) => {
                let mut bytes = vec![0; output.size()];
                for (entry, number) in pieces {
                    let length: usize = entry.piece_dims().iter().product();
                    let values = arrays[entry.spec.path.as_str()].as_slice::<f32>();
                    let values = &values[number * length..][..length];
                    let piece: &Piece = &entry.pieces[*number];
                    to_disk(values, self.stored, piece, entry.transposed, &mut bytes);
                }
                file.write_all(&bytes)
            }
        }
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
                shape: output.dims.clone(),
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
        match &self.content {
            Content::Carried(bytes) => bytes.len(),
            Content::Pieces(_) => self.dims.iter().product::<usize>() * self.dtype.bitsize() / 8,
        }
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
