//! Freezes the processes of a pid namespace and clones them into others: `twice INIT TARGET…`.
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pids: Vec<i32> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let root = std::fs::File::open(format!("/proc/{}/root", pids[0]))?;
    let subject = pando_freeze::Subject { init: pids[0], outside: &[] };
    let frozen = pando_freeze::freeze(&subject, || Ok(root.into()))?;
    println!(
        "frozen: {} processes, pause {:?}, holder {}",
        frozen.image.processes.len(),
        frozen.pause,
        frozen.holder.pid()
    );
    for init in &pids[1..] {
        let begun = Instant::now();
        let target = pando_freeze::Target { init: *init, cgroup: None, groups: &[], supplied: &[] };
        frozen.holder.clone_into(&target)?.go()?;
        println!("clone under {init}: {:?}", begun.elapsed());
    }
    Ok(())
}
