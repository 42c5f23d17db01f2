//! What a Landlock domain keeps inside a guest it keeps inside its clones: the processes that were frozen, not only
//! what is executed there later.

use crate::abstract_caller;
use crate::case::Case;
use crate::need::Need;
use crate::patience::eventually;
use crate::sandbox::Sandbox;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

pub(crate) const CASES: &[Case] = &[
    Case::new("clone_scopes::a_clone_is_kept_from_the_hosts_abstract_sockets", |sandbox| kept_inside(sandbox, false))
        .needs(&[Need::Root, Need::Linux(6, 12)]),
    Case::new("clone_scopes::and_so_is_one_that_was_made_ahead", |sandbox| kept_inside(sandbox, true))
        .needs(&[Need::Root, Need::Linux(6, 12)]),
];

/// Calls when it is told to.
const CALLER: &str =
    "until [ -e /go ]; do sleep 0.05; done; /bin/caller WORD NAME >/said 2>&1; echo over >>/said; sleep 100000";

fn kept_inside(sandbox: &Sandbox, ahead: bool) {
    let name = format!("pando-scopes-{}-{ahead}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a short name");
    let _listener = UnixListener::bind_addr(&address).expect("nobody else has this name");
    let script = CALLER.replace("WORD", abstract_caller::WORD).replace("NAME", &name);
    let program = std::env::current_exe().expect("this program has a path");
    for (profile, reached) in [("default", true), ("strict", false)] {
        let (source, image) = (format!("of-{profile}"), format!("image-{profile}"));
        sandbox.guest(&source, &["--profile", profile, "--net", "host", "--", "sh", "-c", &script]);
        sandbox.pando(["cp"]).args([&program]).args([format!("{source}:/bin/caller")]).ok();
        sandbox.pando(["freeze", &source, &image]).ok();
        let clone = format!("clone-{profile}");
        if ahead {
            // Nobody else is in the way of one that is made ahead, from the second on.
            sandbox.pando(["clone", &image, "earlier"]).ok();
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        sandbox.pando(["clone", &image, &clone]).ok();
        for guest in [&source, &clone] {
            sandbox.exec_sh(guest, ": >/go").ok();
            let said = || sandbox.exec_sh(guest, "cat /said").run().out();
            eventually("it has called", || said().ends_with("over\n"));
            assert_eq!(said().starts_with("reached"), reached, "{guest}: {}", said());
        }
        sandbox.pando(["rm", "--force", &source, &clone]).ok();
        sandbox.pando(["rm", "--force", "earlier"]).run();
    }
}
