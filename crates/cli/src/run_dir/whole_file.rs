//! A file that is there complete or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::RunDirError;

/// Writes to a temporary name beside `path`, waits for the disk, then renames.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), RunDirError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = Path::new(&temporary);
    let written = fill(temporary, bytes).and_then(|()| std::fs::rename(temporary, path));
    if let Err(source) = written {
        let _ = std::fs::remove_file(temporary);
        return Err(RunDirError::Failed {
            path: path.to_owned(),
            doing: "write",
            source,
        });
    }
    // The rename itself must reach the disk; where folders cannot be opened for this, it will in its own time.
    if let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
    Ok(())
}

fn fill(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
