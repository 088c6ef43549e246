//! A file under its final name is a whole file: written beside it, flushed to the disk, then renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Writes `path` through `fill`; what was there before stays until the new file is complete.
pub(crate) fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Two processes that write the same file must not share the unfinished one.
    name.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(name);
    let written = fill_and_sync(&partial, fill).and_then(|()| fs::rename(&partial, path));
    if let Err(source) = written {
        // The first error is the one to report; a left-over under this name misleads nobody.
        let _ = fs::remove_file(&partial);
        return Err(Error::Io {
            action: "write",
            path: path.to_path_buf(),
            source,
        });
    }
    sync_folder_of(path)
}

fn fill_and_sync(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    fill(&mut file)?;
    file.flush()?;
    file.get_ref().sync_all()
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
