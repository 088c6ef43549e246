use std::fs;

use super::write_atomically;

#[test]
fn a_file_is_replaced_whole_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/file");
    write_atomically(&path, &[b"one, ", b"two"]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one, two");
    write_atomically(&path, &[b"three"]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"three");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_failed_write_leaves_no_half_file() {
    let folder = tempfile::tempdir().unwrap();
    // A folder where the file should be: the last step fails.
    let path = folder.path().join("taken");
    fs::create_dir_all(path.join("inside")).unwrap();
    write_atomically(&path, &[b"x"]).unwrap_err();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
