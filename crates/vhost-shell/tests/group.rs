//! A socket that belongs to a group. The umask of the process changes for it, so this test has a
//! process of its own.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::time::Instant;

use ringway_vhost_shell::{Endpoint, Mode, SocketGroup};
use tempfile::TempDir;

#[test]
fn members_of_the_group_may_connect_to_a_socket_of_ours() {
    let [dir, probe] = [(); 2].map(|()| TempDir::new().expect("a directory"));
    let own = fs::metadata(dir.path()).expect("it is there").gid();
    let groups = rustix::process::getgroups().expect("a list").into_iter();
    let others = groups.map(rustix::process::Gid::as_raw).chain([own + 1]);
    let mut others = others.filter(|id| *id != own);
    let Some(id) = others.find(|id| chown(probe.path(), None, Some(*id)).is_ok()) else {
        println!("SKIPPED: this user is in no other group and has no right to give files away");
        return;
    };
    let group = SocketGroup { name: "vms".to_owned(), id };
    let path = dir.path().join("vm");
    let before = umask_of_new_files(&dir);
    let made = Endpoint::for_group(&path, Mode::Server, Some(&group), Instant::now());
    made.expect("it can be made");
    let socket = fs::metadata(&path).expect("it is there");
    assert_eq!((socket.gid(), socket.mode() & 0o777), (id, 0o660));
    assert_eq!(umask_of_new_files(&dir), before, "it is as it was");
}

fn umask_of_new_files(dir: &TempDir) -> u32 {
    let file = tempfile::Builder::new().permissions(open_to_all()).tempfile_in(dir).expect("made");
    file.as_file().metadata().expect("open").mode()
}

fn open_to_all() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o666)
}
