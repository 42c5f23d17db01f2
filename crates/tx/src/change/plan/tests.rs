use super::*;
use crate::tree::attributes::Moment;
use crate::tree::identity::Identity;
use pando_kernel::file::handle::FileHandle;

const MOMENT: Moment = Moment { seconds: 1, nanoseconds: 2 };

fn path(text: &str) -> TreePath {
    TreePath::new(text.as_bytes()).unwrap()
}

fn identity(ino: u64) -> Identity {
    FileHandle { kind: 1, bytes: ino.to_le_bytes().to_vec() }.into()
}

fn origin(ino: u64) -> Origin {
    Origin { ino, identity: identity(ino), changed: MOMENT }
}

fn file(origin: Option<Origin>, content_differs: bool) -> What {
    What::File(File { origin, content_differs, attributes_differ: false, ..File::made() })
}

fn node(at: &str, live: Option<(u64, bool)>, what: What) -> Node {
    let live = live.map(|(ino, directory)| LiveName { ino, directory, changed: MOMENT });
    Node { path: path(at), ino: 900, live, marked: false, what }
}

fn directory(source: DirectorySource, children: Vec<Node>) -> What {
    What::Directory(Directory { modified: MOMENT, ..Directory::holding(source, children) })
}

fn root(children: Vec<Node>) -> Node {
    node("", Some((2, true)), directory(DirectorySource::SamePlace, children))
}

/// What is found by its identity, and what by its place.
fn name(target: &OpTarget) -> String {
    match target {
        OpTarget::Root => "/".to_owned(),
        OpTarget::Known { identity: known, at } => format!("{at}, known as {known:?}"),
        OpTarget::Brought { at, ino } => format!("{at}, brought as {ino:?}"),
        OpTarget::Staged(slot) => format!("what was put aside as {slot}"),
    }
}

fn known(at: &str, ino: u64) -> String {
    name(&OpTarget::Known { identity: identity(ino), at: path(at) })
}

fn words(ops: &[Op]) -> Vec<String> {
    let word = |op: &Op| match op {
        Op::StageDirectory { from, slot, .. } => format!("put {from} aside as {slot}"),
        Op::StageLink { origin, slot } => format!("link {} aside as {slot}", origin.ino),
        Op::Remove { at, .. } => format!("remove {at}"),
        Op::Place { slot, at, .. } => format!("place {slot} at {at}"),
        Op::MakeDirectory { at, .. } => format!("make {at}"),
        Op::Move { at, .. } => format!("move {at}"),
        Op::Update { target, .. } => format!("update {}", name(target)),
        Op::Attributes { target, .. } => format!("attributes of {}", name(target)),
        Op::Restrict { target, .. } => format!("restrict {}", name(target)),
        Op::Protect { target, slot, .. } => format!("protect {}, put aside as {slot:?}", name(target)),
    };
    ops.iter().map(word).collect()
}

#[test]
fn nothing_changed_is_nothing_to_do() {
    assert!(plan(&root(vec![]), &[]).is_empty());
    let looked_into = node("d", Some((3, true)), directory(DirectorySource::SamePlace, vec![]));
    assert!(plan(&root(vec![looked_into]), &[]).is_empty());
    let opened = node("f", Some((7, false)), file(Some(origin(7)), false));
    assert!(plan(&root(vec![opened]), &[]).is_empty());
}

#[test]
fn a_new_directory_is_one_move_unless_something_old_is_in_it() {
    let new = |children| node("d", None, directory(DirectorySource::New, children));
    let steps = plan(&root(vec![new(vec![node("d/f", None, file(None, true))])]), &[]);
    assert_eq!(words(&steps.change), ["move /d"]);
    assert_eq!(words(&steps.finish), ["attributes of /"]);
    let steps = plan(&root(vec![new(vec![node("d/f", None, file(Some(origin(7)), false))])]), &[]);
    assert_eq!(words(&steps.stage), ["link 7 aside as 1"]);
    assert_eq!(words(&steps.change), ["make /d", "place 1 at /d/f"]);
}

#[test]
fn removals_come_before_what_takes_their_place() {
    let file_for_directory = node("b", Some((5, true)), file(None, true));
    let gone = node("c", Some((6, false)), What::Gone);
    let replaced = node("a", Some((4, false)), file(None, true));
    let steps = plan(&root(vec![replaced, file_for_directory, gone]), &[]);
    assert_eq!(words(&steps.change), ["remove /c", "move /a", "remove /b", "move /b"]);
}

#[test]
fn swapped_directories_are_both_put_aside_first_and_the_deepest_before_those_around_it() {
    let moved = |at: &str, from: &str, ino, children| {
        let source = DirectorySource::Moved { from: path(from), ino };
        node(at, Some((ino + 1, true)), directory(source, children))
    };
    let steps = plan(&root(vec![moved("a", "b", 10, vec![]), moved("c", "b/x/y", 20, vec![])]), &[]);
    assert_eq!(words(&steps.stage), ["put /b/x/y aside as 2", "put /b aside as 0"]);
    assert_eq!(words(&steps.change), ["remove /a", "place 0 at /a", "remove /c", "place 2 at /c"]);
}

#[test]
fn a_changed_file_is_updated_where_it_is_and_a_renamed_one_gets_its_new_name_first() {
    let steps = plan(&root(vec![node("f", Some((7, false)), file(Some(origin(7)), true))]), &[]);
    assert_eq!(words(&steps.change), [format!("restrict {}", known("f", 7)), format!("update {}", known("f", 7))]);
    assert_eq!(words(&steps.finish), [format!("attributes of {}", known("f", 7))]);
    let renamed = node("g", None, file(Some(origin(7)), true));
    let steps = plan(&root(vec![node("f", Some((7, false)), What::Gone), renamed]), &[]);
    assert_eq!(words(&steps.stage), ["link 7 aside as 1"]);
    assert_eq!(
        words(&steps.change),
        [&format!("restrict {}", known("g", 7)), "remove /f", "place 1 at /g", &format!("update {}", known("g", 7))]
    );
}

#[test]
fn what_only_the_index_knows_is_not_lost_and_what_a_name_knows_is_not_done_twice() {
    let indexed = |ino| {
        let What::File(file) = file(Some(origin(ino)), true) else { unreachable!("it is one") };
        Indexed { path: path("00fb"), file }
    };
    let gone = node("alias", Some((7, false)), What::Gone);
    let steps = plan(&root(vec![gone]), &[indexed(7)]);
    assert_eq!(words(&steps.stage), ["link 7 aside as 1"]);
    assert_eq!(
        words(&steps.change),
        ["restrict what was put aside as 1", "remove /alias", "update what was put aside as 1"]
    );
    let named = node("name", Some((8, false)), file(Some(origin(8)), true));
    assert_eq!(plan(&root(vec![named]), &[indexed(8)]).change.len(), 2);
}

#[test]
fn the_time_of_a_directory_is_set_where_its_own_names_change_and_nowhere_above() {
    let new = node("a/b/f", None, file(None, true));
    let within = node("a/b", Some((4, true)), directory(DirectorySource::SamePlace, vec![new]));
    let above = node("a", Some((3, true)), directory(DirectorySource::SamePlace, vec![within]));
    assert_eq!(words(&plan(&root(vec![above]), &[]).finish), ["attributes of /a/b, brought as Some(4)"]);
}

#[test]
fn protection_comes_behind_everything_that_it_would_be_in_the_way_of() {
    let protected = |what: What| match what {
        What::File(file) => What::File(File { protection: Some(Protection::marked(b"i")), ..file }),
        What::Directory(directory) => {
            What::Directory(Directory { protection: Some(Protection::marked(b"a")), ..directory })
        }
        What::Gone => What::Gone,
    };
    let new = node("d/n", None, protected(file(None, true)));
    let renamed = node("d/r", None, protected(file(Some(origin(7)), true)));
    let around = protected(directory(DirectorySource::SamePlace, vec![new, renamed]));
    let steps = plan(&root(vec![node("d", Some((3, true)), around)]), &[]);
    assert_eq!(words(&steps.stage), ["link 7 aside as 0"]);
    let finish = words(&steps.finish);
    let [.., new, renamed, around] = &finish[..] else { panic!("{finish:?}") };
    assert_eq!(*new, "protect /d/n, brought as Some(900), put aside as None");
    // What was put aside could not be removed any more.
    assert_eq!(*renamed, format!("protect {}, put aside as Some(0)", known("d/r", 7)));
    assert_eq!(*around, "protect /d, brought as Some(3), put aside as None");
}
