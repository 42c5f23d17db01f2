//! Mistakes that a test plants in the making of clones, to see that comparing them with what was frozen finds each. In
//! ordinary builds there are none.

use crate::image::Image;
#[cfg(feature = "crash-points")]
use crate::image::{Area, AreaKind, FileKind, Timer};
use std::borrow::Cow;

/// The image that clones are made of: another one where the file that the environment's `PANDO_PLANT` names has the
/// name of a mistake.
#[cfg(feature = "crash-points")]
pub(crate) fn of(image: &Image) -> Cow<'_, Image> {
    let wanted = std::env::var("PANDO_PLANT").ok().and_then(|path| std::fs::read_to_string(path).ok());
    let Some(wanted) = wanted else { return Cow::Borrowed(image) };
    let mut other = image.clone();
    if let Some((_, plant)) = MISTAKES.iter().find(|(name, _)| *name == wanted.trim()) {
        plant(&mut other);
    }
    Cow::Owned(other)
}

/// The image as it is: in ordinary builds no mistake is planted.
#[cfg(not(feature = "crash-points"))]
pub(crate) fn of(image: &Image) -> Cow<'_, Image> {
    Cow::Borrowed(image)
}

/// A mistake: its name, and how it is made in the last of the processes that live.
#[cfg(feature = "crash-points")]
type Mistake = (&'static str, fn(&mut Image));

#[cfg(feature = "crash-points")]
const MISTAKES: [Mistake; 17] = [
    ("umask", |image| process(image, |process| process.umask ^= 0o22)),
    ("user", |image| process(image, |process| process.threads[0].credentials.users[2] = 7)),
    ("groups", |image| process(image, |process| process.threads[0].credentials.further.push(7))),
    ("capability", |image| process(image, |process| process.threads[0].credentials.capabilities[2] &= !1)),
    ("privileges", |image| {
        process(image, |process| {
            let credentials = &mut process.threads[0].credentials;
            credentials.no_new_privileges = !credentials.no_new_privileges;
        });
    }),
    ("name", |image| process(image, |process| process.threads[0].name = b"other".to_vec())),
    ("directory", |image| process(image, |process| process.directory = "/proc".into())),
    ("root", |image| process(image, |process| process.root = Some("/proc".into()))),
    ("limit", |image| process(image, |process| process.limits.iter_mut().for_each(|limit| limit.1 /= 2))),
    ("ignored", |image| process(image, |process| process.actions.push((libc::SIGUSR2, [1, 0, 0, 0])))),
    ("waiting", |image| {
        process(image, |process| {
            let mut info = vec![0; 128];
            info[0] = libc::SIGUSR2 as u8;
            info[8] = -1_i8 as u8;
            info[9..12].fill(0xff);
            process.threads[0].waiting.push(info);
        });
    }),
    ("timer", |image| process(image, |process| process.timers.push(Timer { id: 0, notify: 1, ..Timer::default() }))),
    ("descriptor", |image| process(image, |process| process.descriptors.truncate(3))),
    ("on-exec", |image| {
        process(image, |process| {
            process.descriptors.iter_mut().for_each(|one| one.close_on_exec = !one.close_on_exec);
        });
    }),
    ("open", |image| {
        let named = |kind: &FileKind| matches!(kind, FileKind::Named { .. });
        image.files.iter_mut().filter(|file| named(&file.kind)).for_each(|file| file.flags ^= libc::O_APPEND as u32);
    }),
    ("rights", |image| {
        process(image, |process| {
            let constant = |area: &&mut Area| area.protection == 1 && matches!(area.kind, AreaKind::Private { .. });
            process.areas.iter_mut().filter(constant).for_each(|area| area.protection = 3);
        });
    }),
    ("ended", |image| {
        let ended = image.processes.iter_mut().filter_map(|process| process.ended.as_mut());
        ended.for_each(|status| *status ^= 0x100);
    }),
];

#[cfg(feature = "crash-points")]
fn process(image: &mut Image, plant: impl Fn(&mut crate::image::Process)) {
    image.processes.iter_mut().rfind(|process| !process.threads.is_empty()).into_iter().for_each(plant);
}
