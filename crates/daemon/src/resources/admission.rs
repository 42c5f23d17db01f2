//! Whether guests are admitted, and what guests of each kind have come to.
//!
//! A kind is an image, whose clones resemble each other, or a guest that lasts, whose lives do. It is known by its name
//! and by when it was made: another of the name begins anew. What was learned is kept in the state directory.

use crate::resources::Resources;
use crate::state::daemon::Daemon;
use crate::state::events::now;
use crate::state::guest::Guest;
use crate::state::record;
use pando_api::{Fault, FaultKind, Spec};
use pando_guest::policy::{grants, profile};
use pando_guest::settings::{Problem, Settings};
use pando_guest::{GuestName, Places};
use pando_limit::admission::{Admit, Claim, Present, Room, Rules, Shortage, admit};
use pando_limit::learned::{Figure, expected_by_present};
use pando_limit::machine::Free;
use pando_limit::quantity::show_size;
use pando_limit::usage::Usage;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// When a guest's first figure is taken.
const FIRST: Duration = Duration::from_secs(1);

/// How many guests of a kind are watched at a time: of a thousand clones a few are enough.
const WATCHED: usize = 8;

/// How many kinds are remembered.
const MOST: usize = 4096;

/// The rules in pando.toml, and what is wrong with them.
pub(crate) fn rules(settings: &Settings) -> (Rules, Vec<Problem>) {
    settings.table("memory")
}

/// By what guests are admitted, and what was learned.
#[derive(Debug)]
pub(crate) struct Admission {
    rules: Cell<Rules>,
    path: PathBuf,
    figures: RefCell<BTreeMap<Kind, Figure>>,
    /// How many guests of a kind are being watched.
    watched: RefCell<HashMap<Kind, usize>>,
}

/// What is alike: `image:NAME@SECONDS` or `guest:NAME@SECONDS`, by name and by when it was made.
type Kind = String;

/// What somebody wants otherwise than pando.toml has it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Wish {
    admit: Option<Admit>,
    overbook: Option<f64>,
}

impl Wish {
    /// By what a client said.
    pub(crate) fn read(admit: Option<&str>, overbook: Option<&str>) -> Result<Self, Fault> {
        let wrong = |word: &str| {
            crate::failure::bad(
                word,
                format!("'{word}' is no way to admit guests; there are always, learned and reserved"),
            )
        };
        let admit = admit.map(|word| Admit::named(word).ok_or_else(|| wrong(word))).transpose()?;
        let times =
            |word: &str| pando_limit::admission::overbook(word).map_err(|why| crate::failure::bad("overbook", why));
        Ok(Self { admit, overbook: overbook.map(times).transpose()? })
    }
}

impl Admission {
    pub(crate) fn new(places: &Places, settings: &Settings) -> Self {
        let path = places.state().join("learned.toml");
        let mut figures: BTreeMap<Kind, Figure> = record::read_toml(&path).unwrap_or_default();
        figures.retain(|kind, _| {
            let named = kind.split_once(':').and_then(|(what, rest)| Some((what, rest.rsplit_once('@')?.0)));
            match named {
                Some(("image", name)) => places.images().join(name).exists(),
                Some((_, name)) => name.parse().is_ok_and(|name| places.guest(&name).exists()),
                None => false,
            }
        });
        Self { rules: Cell::new(rules(settings).0), path, figures: RefCell::new(figures), watched: RefCell::default() }
    }

    /// From now on guests are admitted by these.
    pub(crate) fn go_by(&self, rules: Rules) {
        self.rules.set(rules);
    }

    fn learned(&self, kind: &str) -> Option<u64> {
        self.figures.borrow().get(kind).and_then(|figure| figure.expected(now()))
    }

    fn note(&self, kind: &str, note: impl FnOnce(&mut Figure)) {
        let mut figures = self.figures.borrow_mut();
        if figures.len() >= MOST && !figures.contains_key(kind) {
            return;
        }
        let figure = figures.entry(kind.to_owned()).or_default();
        let before = figure.clone();
        note(figure);
        // Not each byte is worth a write.
        if figure.differs(&before, now()) {
            self.write(&figures);
        }
    }

    /// Whether one more of a kind is to be watched.
    fn begins_to_watch(&self, kind: &str) -> bool {
        let mut watched = self.watched.borrow_mut();
        let count = watched.entry(kind.to_owned()).or_default();
        let begins = *count < WATCHED;
        *count += usize::from(begins);
        begins
    }

    fn has_watched(&self, kind: &str) {
        let mut watched = self.watched.borrow_mut();
        if let Some(count) = watched.get_mut(kind) {
            *count -= 1;
            if *count == 0 {
                watched.remove(kind);
            }
        }
    }

    /// Forgets what was learned of an image or a guest that is removed, whatever is made under its name later.
    fn forget(&self, what: &str, name: &str) {
        let mut figures = self.figures.borrow_mut();
        let before = figures.len();
        let prefix = format!("{what}:{name}@");
        figures.retain(|kind, _| !kind.starts_with(&prefix));
        if figures.len() < before {
            self.write(&figures);
        }
    }

    fn write(&self, figures: &BTreeMap<Kind, Figure>) {
        if let Err(error) = record::write_toml(&self.path, figures) {
            tracing::debug!(%error, "what guests come to is not known to the next daemon");
        }
    }
}

/// Forgets what clones of an image have come to.
pub(crate) fn forget_image(daemon: &Daemon, name: &str) {
    daemon.admission.forget("image", name);
}

/// Forgets what a guest has come to.
pub(crate) fn forget_guest(daemon: &Daemon, name: &GuestName) {
    daemon.admission.forget("guest", name.as_ref());
}

/// The kind of a guest. One whose image is not there any more has none: nobody of its kind can come.
fn kind(daemon: &Daemon, guest: &Guest) -> Option<Kind> {
    let record = guest.record.borrow();
    match record.source.strip_prefix("image:") {
        Some(image) => {
            let kind = image_kind(daemon, image)?;
            (kind == of_image(image, record.image_created?)).then_some(kind)
        }
        None if guest.ephemeral => None,
        None => Some(format!("guest:{}@{}", guest.name, record.created)),
    }
}

/// The kind of an image's clones.
fn image_kind(daemon: &Daemon, image: &str) -> Option<Kind> {
    daemon.images.borrow().get(image).map(|held| of_image(image, held.record.created))
}

fn of_image(name: &str, created: i64) -> Kind {
    format!("image:{name}@{created}")
}

/// What tells a life from others of its kind: clones by who they are, so that one that is started again and again
/// counts once; lives of a guest by when they began.
fn life(guest: &Guest, started: Option<i64>) -> String {
    let record = guest.record.borrow();
    match record.image_created {
        Some(_) => format!("{}@{}", guest.name, record.created),
        None => started.unwrap_or(0).to_string(),
    }
}

/// Looks whether there is room for a guest that is about to start.
pub(crate) fn check_guest(daemon: &Daemon, guest: &Guest) -> Result<(), Fault> {
    if daemon.admission.rules.get().admit == Admit::Always {
        return Ok(());
    }
    let spec = guest.spec.borrow().clone();
    let kind = kind(daemon, guest);
    let what = format!("guest '{}'", guest.name);
    check(daemon, (guest.name.as_ref(), &what), &spec, (kind.as_deref(), 1), Wish::default())
}

/// Looks whether there is room for so many clones of an image.
pub(crate) fn check_clones(daemon: &Daemon, image: &str, spec: &Spec, count: usize, wish: Wish) -> Result<(), Fault> {
    let kind = image_kind(daemon, image);
    let what = match count {
        1 => format!("a clone of image '{image}'"),
        _ => format!("{count} clones of image '{image}'"),
    };
    check(daemon, (image, &what), spec, (kind.as_deref(), count as u64), wish)
}

fn check(
    daemon: &Daemon,
    (name, what): (&str, &str),
    spec: &Spec,
    (kind, count): (Option<&str>, u64),
    wish: Wish,
) -> Result<(), Fault> {
    let said = daemon.admission.rules.get();
    let rules =
        Rules { admit: wish.admit.unwrap_or(said.admit), overbook: wish.overbook.unwrap_or(said.overbook), ..said };
    if rules.admit == Admit::Always {
        return Ok(());
    }
    let memory = grants::read(&profile::completed(spec)).unwrap_or_default().memory;
    let present = present(daemon, rules.settle_seconds);
    // Those who grew after they had been looked at say so by what they have.
    let grown = kind.and_then(|kind| {
        let alike = present.iter().filter(|one| one.is_settled && one.kind.as_deref() == Some(kind));
        expected_by_present(alike.map(|one| one.present.now))
    });
    let learned = kind.and_then(|kind| daemon.admission.learned(kind)).max(grown);
    let claim = Claim { reserve: memory.reserve, limit: memory.limit, learned };
    let present: Vec<_> = present.into_iter().map(|one| one.present).collect();
    let free = Free::look();
    let room = Room { memory: daemon.resources.machine.memory, free: free.memory + free.swap };
    admit(&rules, room, &present, (claim, count))
        .map_err(|short| Fault::new(FaultKind::Unavailable, name, sentence(what, count, &short)))
}

/// A guest that runs, and what is known of its kind.
struct Seen {
    present: Present<GuestName>,
    kind: Option<Kind>,
    /// Whether it has come to what it comes to.
    is_settled: bool,
}

/// Who runs, with what each has and was promised.
fn present(daemon: &Daemon, settle_seconds: u64) -> Vec<Seen> {
    let guests: Vec<Rc<Guest>> = daemon.guests.borrow().values().cloned().collect();
    let settled_before = now().saturating_sub_unsigned(settle_seconds);
    let one = |guest: &Rc<Guest>| {
        let kind = kind(daemon, guest);
        let is_settled = guest.running.borrow().as_ref().is_some_and(|running| running.started <= settled_before);
        let learned = kind.as_deref().filter(|_| !is_settled).and_then(|kind| daemon.admission.learned(kind));
        daemon.resources.with(&guest.name, |tenant| {
            let memory = &tenant.limits.memory;
            let claim = Claim { reserve: memory.reserve, limit: memory.limit, learned };
            let present = Present { key: guest.name.clone(), now: Usage::working_set(&tenant.groups), claim };
            Seen { present, kind, is_settled }
        })
    };
    guests.iter().filter_map(one).collect()
}

fn sentence(what: &str, count: u64, short: &Shortage<GuestName>) -> String {
    /// So many are named.
    const NAMED: usize = 5;
    let size = show_size;
    let number = if count == 1 { String::new() } else { format!(" {} would fit;", short.fits) };
    let one = |(name, bytes): &(GuestName, u64)| format!("'{name}' ({})", size(*bytes));
    let named: Vec<String> = short.stop.iter().take(NAMED).map(one).collect();
    let more = short.stop.len().saturating_sub(NAMED);
    let advice = match (named.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!("; stopping {} would make room", named.join(", ")),
        (false, more) => format!("; stopping {} and {more} more would make room", named.join(", ")),
    };
    format!(
        "there is no room for {what}:{number} each is counted for {}, guests have {} of {} already, and {} are missing{advice}; \
         'admit' and 'overbook' in [memory] of pando.toml say who is admitted",
        size(short.each),
        size(short.taken),
        size(short.room),
        size(short.missing),
    )
}

/// Learns from a guest that has just begun what its kind comes to, unless enough of its kind are being watched.
pub(crate) fn learn(daemon: &Rc<Daemon>, guest: &Rc<Guest>) {
    let Some(kind) = kind(daemon, guest).filter(|kind| daemon.admission.begins_to_watch(kind)) else { return };
    let started = guest.running.borrow().as_ref().map(|running| running.started);
    let (daemon, guest) = (Rc::clone(daemon), Rc::clone(guest));
    let settled = Duration::from_secs(daemon.admission.rules.get().settle_seconds);
    tokio::task::spawn_local(async move {
        let life = life(&guest, started);
        tokio::time::sleep(FIRST).await;
        note(&daemon, &guest, started, |figure, bytes| figure.note_first(&life, now(), bytes));
        tokio::time::sleep(settled.saturating_sub(FIRST)).await;
        note(&daemon, &guest, started, |figure, bytes| figure.note_steady(&life, now(), bytes));
        daemon.admission.has_watched(&kind);
    });
}

/// Notes what a guest works with, if it is in the same life, and of the kind that it was.
fn note(daemon: &Daemon, guest: &Guest, started: Option<i64>, note: impl FnOnce(&mut Figure, u64)) {
    let bytes = working_set(daemon, &guest.name, started);
    if let Some((kind, bytes)) = kind(daemon, guest).zip(bytes) {
        daemon.admission.note(&kind, |figure| note(figure, bytes));
    }
}

/// What a guest works with, if it is in the same life.
fn working_set(daemon: &Daemon, name: &GuestName, started: Option<i64>) -> Option<u64> {
    let guest = daemon.guests.borrow().get(name).cloned()?;
    let now = guest.running.borrow().as_ref().map(|running| running.started);
    let resources: &Resources = &daemon.resources;
    resources.with(name, |tenant| Usage::working_set(&tenant.groups)).filter(|_| now == started)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_how_many_fit_and_who_would_make_room() {
        let stop = vec![("big".parse().unwrap(), 64 << 20), ("web".parse().unwrap(), 1 << 20)];
        let short = Shortage { each: 32 << 20, fits: 3, missing: 65 << 20, room: 200 << 20, taken: 104 << 20, stop };
        let said = sentence("5 clones of image 'warm'", 5, &short);
        for words in [
            "5 clones of image 'warm'",
            "3 would fit",
            "32M",
            "104M of 200M",
            "65M are missing",
            "'big' (64M), 'web' (1.0M)",
        ] {
            assert!(said.contains(words), "no {words} in {said}");
        }
        let alone = sentence("guest 'x'", 1, &Shortage { stop: Vec::new(), ..short });
        assert!(!alone.contains("would fit") && !alone.contains("stopping"), "{alone}");
    }

    #[test]
    fn a_wish_is_read_or_refused() {
        assert_eq!(Wish::read(None, None).unwrap(), Wish::default());
        let wish = Wish::read(Some("learned"), Some("3x")).unwrap();
        assert_eq!(wish, Wish { admit: Some(Admit::Learned), overbook: Some(3.0) });
        assert!(Wish::read(Some("never"), None).unwrap_err().message.contains("reserved"));
        assert!(Wish::read(None, Some("0")).unwrap_err().message.contains("3x"));
    }
}
