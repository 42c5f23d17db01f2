//! How long a guest stands still that has files of its own: on xfs, which copies by reference, and on ext4, which
//! cannot.

use super::{PAUSE, Size, subject};
use crate::busybox_root;
use crate::interrupt;
use crate::own_pando::OwnPando;
use crate::report::Report;
use crate::settings::Settings;
use crate::tx::image::Image;
use pando_api::{Method, Network, Spec};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// What a guest has written before it is frozen: so many files, and so many bytes in all.
const FILES: usize = 10_000;
const BYTES: usize = 500_000_000;

/// How many of them have changed since they were last looked at.
const CHANGED: usize = 10;

/// Where they lie in the guest.
const DIRECTORY: &str = "own";

/// Measures both sizes on both file systems.
pub(super) fn measure(settings: &Settings, sizes: [&Size; 2], report: &mut Report) -> anyhow::Result<()> {
    type Make = fn(&Settings) -> anyhow::Result<Image>;
    let kinds: [(&str, Make); 2] = [("xfs", Image::xfs), ("ext4", Image::ext4)];
    for (kind, make) in kinds {
        let disk = make(settings)?;
        let pando = OwnPando::start_in(&settings.pando, disk.path())?;
        let root = pando.directory().join("busybox");
        busybox_root::make(&root)?;
        subject::install(&root)?;
        for size in sizes {
            let row = format!("{} on {kind}, {FILES} files of its own: standstill", size.name);
            one(&pando, &root, size, settings.samples(11, 3), |sample| report.add(&row, "ms", sample))?;
            report.hold(row.clone(), report.median(&row), size.pause, "ms");
        }
    }
    Ok(())
}

fn one(pando: &OwnPando, root: &Path, size: &Size, samples: usize, mut add: impl FnMut(f64)) -> anyhow::Result<()> {
    let mut client = pando.connect()?;
    let name = format!("own-{}", size.mib);
    let spec = Spec { network: Network::None, command: subject::command(size.mib), ..Spec::default() };
    let source = Some(root.to_string_lossy().into_owned());
    client.call(&Method::Create { name: name.clone(), source, spec, start: false })?;
    super::cold_start(pando, &mut client, &name)?;
    let upper = pando.state().join("guests").join(&name).join("files/upper");
    let files = upper.join(DIRECTORY);
    fill(&files)?;
    for round in 0..=samples {
        interrupt::pause(PAUSE)?;
        for number in 0..CHANGED {
            File::options().append(true).open(place(&files, number * (FILES / CHANGED)))?.write_all(b"more")?;
        }
        let freeze = Method::Freeze {
            name: name.clone(),
            image: Some(name.clone()),
            stop: false,
            memory: true,
            wait: false,
            unchecked: false,
        };
        let image = client.call(&freeze)?;
        if round > 0 {
            add(image["image"]["pause_us"].as_f64().unwrap_or(f64::NAN) / 1e3);
        }
        client.call(&Method::RemoveImage { image: name.clone() })?;
    }
    super::remove(&mut client, &name).map(drop)
}

fn place(files: &Path, number: usize) -> std::path::PathBuf {
    files.join((number / 100).to_string()).join((number % 100).to_string())
}

/// Writes them as the guest would find them: its root is another user of the host, to whom it does not matter.
fn fill(files: &Path) -> anyhow::Result<()> {
    let content = vec![b'x'; BYTES / FILES];
    for number in 0..FILES {
        interrupt::check()?;
        let path = place(files, number);
        if number % 100 == 0 {
            std::fs::create_dir_all(path.parent().unwrap_or(files))?;
        }
        std::fs::write(path, &content)?;
    }
    // What is still to be written to the disk is nobody's standstill.
    rustix::fs::sync();
    Ok(())
}
