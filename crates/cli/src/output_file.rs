//! Files that the user has written: whether they can be, before the work that fills them.

use std::path::Path;

use anyhow::{Error, bail};

/// Whether new files can be made in a folder.
pub(crate) fn check_folder(folder: &Path) -> Result<(), Error> {
    if !folder.metadata()?.is_dir() {
        bail!("{} is a file", folder.display());
    }
    Ok(probe(folder)?)
}

/// Makes a file in a folder. Leaves nothing behind.
pub(crate) fn probe(folder: &Path) -> std::io::Result<()> {
    let file = folder.join(format!(".ferrotune-{}.probe", std::process::id()));
    std::fs::File::create(&file).and_then(|_| std::fs::remove_file(&file))
}
