//! What is remembered of pages that were looked at: what each held last, and how often that was something else than
//! the time before.

use crate::page_sharing::{Evidence, Rules};
use std::collections::HashMap;

/// A place in a family of clones: its image, the process by its pid inside, the address.
type Place = (u64, i32, u64);

/// A page that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The address of the page in its process.
    pub address: u64,
    /// What its content comes to, by a hash with a secret.
    pub content: u64,
    /// Whether it has nothing but zeros, or what the image has there.
    pub is_known: bool,
}

/// Where a content was last seen.
#[derive(Clone, Copy, Debug)]
struct Owner {
    clone: u64,
    address: u64,
    round: u64,
    /// Whether it was seen in two places: it may be one by now, and is not looked at any more.
    is_shared: bool,
}

#[derive(Clone, Copy, Debug)]
struct Hint {
    content: u64,
    rewritten: u8,
    round: u64,
}

/// No clone has more than this part of the table: one with ever new pages takes nothing from others.
const PART: usize = 16;

/// The table of hints. It has a bound; what was not seen in the last round makes room. A page that finds none is still
/// compared with the image, but with no other, and is never found to be rewritten. Contents that were seen in two
/// places are remembered for as long as there is room: whoever comes to the same later shares it too.
#[derive(Debug, Default)]
pub struct Hints {
    /// What each clone has at each place: a number for the clone, and the place.
    own: HashMap<(u64, Place), Hint>,
    /// What was seen in a family, and where.
    contents: HashMap<(u64, u64), Owner>,
    /// How many entries each clone has in the two.
    parts: HashMap<u64, usize>,
    /// Whether something found no room in this round.
    was_full: bool,
    round: u64,
}

impl Hints {
    /// A new round of looking begins: what was not seen in the last one is forgotten.
    pub fn begin_round(&mut self) {
        let before = self.round;
        self.own.retain(|_, hint| hint.round == before);
        self.contents.retain(|_, owner| owner.round == before || owner.is_shared && !self.was_full);
        self.was_full = false;
        self.round += 1;
        self.parts.clear();
        let clones = self.own.keys().map(|(clone, _)| clone).chain(self.contents.values().map(|owner| &owner.clone));
        clones.for_each(|clone| *self.parts.entry(*clone).or_default() += 1);
    }

    /// Takes room for one more entry of a clone's, if there is any.
    fn make_room(&mut self, rules: &Rules, clone: u64) -> bool {
        let is_full = self.len() >= rules.share_hints;
        self.was_full |= is_full;
        let part = self.parts.entry(clone).or_default();
        let has_room = !is_full && *part < rules.share_hints.div_ceil(PART);
        *part += usize::from(has_room);
        has_room
    }

    /// How many pages are remembered.
    pub fn len(&self) -> usize {
        self.own.len() + self.contents.len()
    }

    /// Whether no page is remembered at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes a sample of a mapping that has `own` pages of its own; what it shows. `family`, `clone` and `process` say
    /// whose mapping it is.
    pub fn note(
        &mut self,
        rules: &Rules,
        (family, clone, process): (u64, u64, i32),
        own: u64,
        pages: &[Seen],
    ) -> Evidence {
        let mut alike = 0;
        for page in pages {
            let place = (family, process, page.address);
            let is_hot = self.rewritten(rules, clone, place, page.content) >= rules.share_hot;
            let is_anothers = self.is_anothers(rules, (family, clone, page.address), page.content);
            alike += u64::from(!is_hot && (page.is_known || is_anothers));
        }
        Evidence { own, sampled: pages.len() as u64, alike }
    }

    /// How often a page was something else than the time before. Once hot, it stays so.
    fn rewritten(&mut self, rules: &Rules, clone: u64, place: Place, content: u64) -> u8 {
        let round = self.round;
        if let Some(hint) = self.own.get_mut(&(clone, place)) {
            hint.rewritten = hint.rewritten.saturating_add(u8::from(hint.content != content));
            (hint.content, hint.round) = (content, round);
            return hint.rewritten;
        }
        if self.make_room(rules, clone) {
            self.own.insert((clone, place), Hint { content, rewritten: 0, round });
        }
        0
    }

    /// Whether the same was seen in another clone of the family, or at another address.
    fn is_anothers(&mut self, rules: &Rules, (family, clone, address): (u64, u64, u64), content: u64) -> bool {
        let round = self.round;
        if let Some(owner) = self.contents.get_mut(&(family, content)) {
            owner.is_shared |= (owner.clone, owner.address) != (clone, address);
            (owner.clone, owner.address, owner.round) = (clone, address, round);
            return owner.is_shared;
        }
        if self.make_room(rules, clone) {
            self.contents.insert((family, content), Owner { clone, address, round, is_shared: false });
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(address: u64, content: u64) -> Seen {
        Seen { address, content, is_known: false }
    }

    fn alike(hints: &mut Hints, rules: &Rules, clone: u64, pages: &[Seen]) -> u64 {
        hints.note(rules, (1, clone, 7), 100, pages).alike
    }

    #[test]
    fn what_another_has_counts() {
        let (mut hints, rules) = (Hints::default(), Rules::default());
        hints.begin_round();
        assert_eq!(alike(&mut hints, &rules, 1, &[page(0, 5), page(4096, 6)]), 0);
        assert_eq!(alike(&mut hints, &rules, 2, &[page(0, 5), page(4096, 7)]), 1);
        hints.begin_round();
        assert_eq!(alike(&mut hints, &rules, 2, &[page(4096, 7)]), 0, "it is no other than itself");
        assert_eq!(alike(&mut hints, &rules, 1, &[page(8192, 8), page(12288, 8)]), 1, "within a guest");
        // What is one by now nobody looks at any more, and whoever comes to it later shares it.
        (0..9).for_each(|_| hints.begin_round());
        assert_eq!(alike(&mut hints, &rules, 1, &[page(16384, 5), page(4096, 7)]), 1);
        let other = hints.note(&rules, (2, 3, 7), 100, &[page(0, 5)]);
        assert_eq!(other.alike, 0, "of another image");
    }

    #[test]
    fn what_is_rewritten_again_and_again_counts_for_nothing() {
        let (mut hints, rules) = (Hints::default(), Rules { share_hot: 2, ..Rules::default() });
        let mut look = |content| {
            hints.begin_round();
            alike(&mut hints, &rules, 1, &[Seen { is_known: true, ..page(0, content) }])
        };
        assert_eq!([look(1), look(1), look(2), look(3), look(3)], [1, 1, 1, 0, 0]);
    }

    /// A guest with ever new pages does not make the table grow, and others are still seen.
    #[test]
    fn no_guest_fills_the_table_and_what_has_gone_makes_room() {
        let (mut hints, rules) = (Hints::default(), Rules { share_hints: 64, ..Rules::default() });
        hints.begin_round();
        let flood: Vec<Seen> = (0..1000).map(|page| Seen { is_known: true, ..self::page(page * 4096, page) }).collect();
        assert_eq!(alike(&mut hints, &rules, 1, &flood), 1000, "the image's are known without the table");
        assert_eq!(hints.len(), 4, "a sixteenth is one clone's");
        assert_eq!(alike(&mut hints, &rules, 2, &[page(9 << 40, 9999)]), 0);
        assert_eq!(alike(&mut hints, &rules, 3, &[page(9 << 40, 9999)]), 1);
        let flood_of = |clone: u64| -> Vec<Seen> {
            flood.iter().map(|page| Seen { content: page.content + clone * 1000, ..*page }).collect()
        };
        (4..100).for_each(|clone| assert_eq!(alike(&mut hints, &rules, clone, &flood_of(clone)), 1000));
        assert_eq!(hints.len(), 64);
        hints.begin_round();
        hints.begin_round();
        assert_eq!(hints.len(), 1, "what two have is remembered while there is room");
    }
}
