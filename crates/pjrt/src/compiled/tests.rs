use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use sha2::{Digest, Sha256};

use super::{Key, MAGIC, inventory, prune, unwrap};

#[test]
fn the_key_changes_with_everything_the_code_depends_on() {
    let key = || Key {
        text: "t",
        options: b"o",
        plugin_sha256: "p",
        target: "cpu",
        device_count: 2,
    };
    let base = key().digest("flags", "host");
    assert_eq!(key().digest("flags", "host"), base);
    assert_eq!(base.len(), 64);
    let others = [
        Key { text: "u", ..key() }.digest("flags", "host"),
        Key {
            options: b"",
            ..key()
        }
        .digest("flags", "host"),
        Key {
            plugin_sha256: "q",
            ..key()
        }
        .digest("flags", "host"),
        Key {
            target: "tpu",
            ..key()
        }
        .digest("flags", "host"),
        Key {
            device_count: 3,
            ..key()
        }
        .digest("flags", "host"),
        key().digest("", "host"),
        key().digest("flags", "other"),
        // The same bytes, cut elsewhere.
        Key {
            text: "to",
            options: b"",
            ..key()
        }
        .digest("flags", "host"),
    ];
    for (index, other) in others.iter().enumerate() {
        assert_ne!(*other, base, "{index}");
    }
    // Other platforms do not depend on the host's processor.
    let tpu = |host| {
        Key {
            target: "tpu",
            ..key()
        }
        .digest("flags", host)
    };
    assert_eq!(tpu("a"), tpu("b"));
}

#[test]
fn an_entry_is_good_only_as_a_whole() {
    let program = b"machine code";
    let entry = [MAGIC.as_slice(), &Sha256::digest(program), program].concat();
    assert_eq!(unwrap(entry.clone()).as_deref(), Some(program.as_slice()));
    for at in 0..entry.len() {
        let mut damaged = entry.clone();
        damaged[at] ^= 0x20;
        assert_eq!(unwrap(damaged), None, "byte {at} changed");
        assert_eq!(unwrap(entry[..at].to_vec()), None, "cut at {at}");
    }
}

/// A file of 100 bytes, last used so many seconds ago.
fn entry(folder: &Path, name: &str, age: u64) {
    let path = folder.join(name);
    fs::write(&path, [0; 100]).unwrap();
    let used = SystemTime::now() - Duration::from_secs(age);
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(used)
        .unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_longest_unused_go_first_and_the_newest_always_stays() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("compiled");
    fs::create_dir(&folder).unwrap();
    entry(&folder, "new", 1);
    entry(&folder, "old", 300);
    entry(&folder, "middle", 20);
    entry(&folder, ".tmp-1-1", 10);
    entry(&folder, ".tmp-1-2", 4000);
    prune(&folder, 1000);
    assert_eq!(names(&folder), [".tmp-1-1", "middle", "new", "old"]);
    assert_eq!(inventory(root.path()), (3, 300));
    prune(&folder, 300);
    assert_eq!(names(&folder), [".tmp-1-1", "middle", "new"]);
    prune(&folder, 0);
    assert_eq!(names(&folder), [".tmp-1-1", "new"]);
    assert_eq!(inventory(Path::new("/no/such/folder")), (0, 0));
}
