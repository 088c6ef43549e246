//! The compile cache: another process gets the same program, and nothing that is wrong with the cache is fatal.

use std::{ffi::OsStr, fs, path::Path};

use ferrotune_pjrt::{Arg, DType, Mesh, PinnedPlugin, Plugin, survey};

use crate::programs::{add_one, client, counting, in_child, on_both_plugins, spec, upload, values};

/// Compiles and runs one program, and prints whether it came from the cache.
#[test]
#[ignore = "run by the other tests of this file"]
fn child_compile() {
    let plugin =
        Plugin::cpu(&mut |line| panic!("nothing is to be fetched: {line}")).expect("it loads");
    let client = client(&plugin, 2);
    let mesh = Mesh::new(&[("a", 2)]).expect("a mesh");
    let a = spec("a", DType::F32, &[4], &["a"]);
    let program = client
        .compile(&add_one(&mesh, &a, true))
        .expect("it compiles");
    assert_eq!(program.memory().alias, 8);
    let operations = program.operations().expect("the plugin says");
    let operations = operations.expect("a CPU plugin shows its programs");
    assert_eq!(
        (operations.count("add"), operations.collectives),
        (1, vec![])
    );
    let results = program
        .run(vec![Arg::Moved(upload(
            &client,
            &counting(&[4]),
            &a,
            &mesh,
        ))])
        .expect("it runs");
    assert_eq!(values(&results[0]), [1.0, 2.0, 3.0, 4.0]);
    let compiled = survey().cache.map_or(0, |cache| cache.compiled_entries);
    println!("from_cache={} entries={compiled};", program.from_cache());
}

fn compile(plugin: &Plugin, cache: &Path, more: &[(&str, &OsStr)]) -> String {
    let mut variables = vec![
        ("FERROTUNE_PJRT_PLUGIN", plugin.path().as_os_str()),
        ("FERROTUNE_CACHE", cache.as_os_str()),
    ];
    variables.extend(more);
    let text = in_child("caching::child_compile", &variables);
    let start = text.find("from_cache=").expect("the child says so");
    text[start..]
        .split(';')
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn only_entry(cache: &Path) -> std::path::PathBuf {
    let entries: Vec<_> = fs::read_dir(cache.join("compiled"))
        .expect("it exists")
        .map(|e| e.expect("an entry").path())
        .collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.into_iter().next().expect("one")
}

on_both_plugins! {
    fn a_second_process_finds_the_program(plugin) {
        let folder = tempfile::tempdir().expect("a folder");
        let first = compile(plugin, folder.path(), &[]);
        let second = compile(plugin, folder.path(), &[]);
        assert_eq!((first.as_str(), second.as_str()), ("from_cache=false entries=1", "from_cache=true entries=1"));
    }

    fn a_damaged_entry_is_replaced(plugin) {
        let folder = tempfile::tempdir().expect("a folder");
        compile(plugin, folder.path(), &[]);
        let entry = only_entry(folder.path());
        let whole = fs::read(&entry).expect("it reads");
        let mut flipped = whole.clone();
        *flipped.last_mut().expect("it is not empty") ^= 1;
        for damaged in [&whole[..whole.len() / 2], &[], b"something else entirely, but longer than a header", &flipped] {
            fs::write(&entry, damaged).expect("it is written");
            assert_eq!(compile(plugin, folder.path(), &[]), "from_cache=false entries=1");
            assert_eq!(only_entry(folder.path()), entry);
            assert_eq!(compile(plugin, folder.path(), &[]), "from_cache=true entries=1");
        }
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_no_obstacle() {
    let plugin = crate::programs::plugin(PinnedPlugin::Default);
    let folder = tempfile::tempdir().expect("a folder");
    // A file where the directory should be: not even root can write below it.
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").expect("it is written");
    assert_eq!(
        compile(&plugin, &blocked, &[]),
        "from_cache=false entries=0"
    );
}

#[test]
fn xla_flags_are_part_of_the_key_and_dumps_are_not_cached_away() {
    let plugin = crate::programs::plugin(PinnedPlugin::Default);
    let folder = tempfile::tempdir().expect("a folder");
    let flags = |text: &'static str| [("XLA_FLAGS", OsStr::new(text))];
    compile(&plugin, folder.path(), &[]);
    let other = flags("--xla_cpu_enable_fast_math=false");
    assert_eq!(
        compile(&plugin, folder.path(), &other),
        "from_cache=false entries=2"
    );
    let dump = flags("--xla_dump_hlo_pass_re=none");
    assert_eq!(
        compile(&plugin, folder.path(), &dump),
        "from_cache=false entries=2"
    );
    assert_eq!(
        compile(&plugin, folder.path(), &dump),
        "from_cache=false entries=2"
    );
}
