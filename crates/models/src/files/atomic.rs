//! A file under its final name is a whole file: written beside it, flushed to the disk, then renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Writes `path` through `fill`; what was there before stays until the new file is complete.
///
/// A link is followed, so that it goes on pointing at the file. What exists and is not a file (a device, a folder) is
/// refused: a rename would put a file in its place.
pub(crate) fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<()> {
    let followed = fs::canonicalize(path);
    let path = followed.as_deref().unwrap_or(path);
    if path.exists() && !path.is_file() {
        return Err(Error::Io {
            action: "write",
            path: path.to_path_buf(),
            source: io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"),
        });
    }
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
