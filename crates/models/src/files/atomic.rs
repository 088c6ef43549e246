//! A file under its final name is a whole file: written beside it, flushed to the disk, then renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file on its way, beside the one that it will be. What was there before stays until [`Unfinished::finish`]; dropping it leaves
/// nothing.
pub(crate) struct Unfinished {
    file: File,
    partial: PathBuf,
    path: PathBuf,
}

impl Unfinished {
    /// Begins a file.
    ///
    /// A link is followed, so that it goes on pointing at the file. What exists and is not a file (a device, a folder) is
    /// refused: a rename would put a file in its place.
    pub(crate) fn begin(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let refuse = Error::io("write", &path);
        if path.exists() && !path.is_file() {
            let reason = io::Error::new(io::ErrorKind::InvalidInput, "it is not a file");
            return Err(refuse(reason));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        // Two processes that write the same file must not share the unfinished one.
        name.push(format!(".{}.partial", std::process::id()));
        let partial = path.with_file_name(name);
        Ok(Self {
            file: File::create(&partial).map_err(refuse)?,
            partial,
            path,
        })
    }

    /// Writes bytes at a place.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let placed = self.file.seek(SeekFrom::Start(at));
        let put = placed.and_then(|_| self.file.write_all(bytes));
        put.map_err(Error::io("write", &self.path))
    }

    /// Flushes the file to the disk and gives it its name.
    pub(crate) fn finish(self) -> Result<()> {
        let named = self.file.sync_all();
        let named = named.and_then(|()| fs::rename(&self.partial, &self.path));
        named.map_err(Error::io("write", &self.path))?;
        sync_folder_of(&self.path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Once it has its name, nothing is there. Otherwise another error is the one to report.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Writes `path` through `fill`.
pub(crate) fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<()> {
    let made = Unfinished::begin(path)?;
    let mut file = BufWriter::new(&made.file);
    let filled = fill(&mut file).and_then(|()| file.flush());
    drop(file);
    filled.map_err(Error::io("write", &made.path))?;
    made.finish()
}

/// A rename lasts only once the folder is on the disk too.
fn sync_folder_of(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(Error::io("flush", folder))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    fn put(path: &Path, text: &str) -> Result<()> {
        write(path, |file| file.write_all(text.as_bytes()))
    }

    #[test]
    fn a_link_goes_on_pointing_at_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        put(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        put(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }

    #[test]
    fn what_is_not_a_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), Path::new("/dev/null")] {
            assert!(
                put(path, "x")
                    .unwrap_err()
                    .to_string()
                    .contains("not a file")
            );
        }
        assert!(
            fs::metadata("/dev/null")
                .unwrap()
                .file_type()
                .is_char_device()
        );
    }
}
