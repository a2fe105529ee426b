//! Prepared statements and portals that PostgreSQL has confirmed, by which an Execute is judged.
//!
//! The protocol and SQL (PREPARE, EXECUTE, DEALLOCATE) share one name space for statements. A Parse, Bind or Close
//! takes effect here when its reply comes: after an error the server skips what follows. The [ledger](super::ledger)
//! knows what is in flight, and `lookup` asks both. A name that is unknown, or that may stand for either of two
//! texts, counts as a write.
//!
//! Source: <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>

use std::sync::Arc;

use pgpalisade_policies::Effects;

use super::name_change::{NameChange, NamedChange};
use super::name_table::{Lost, NameTable, entry_bytes};
use super::statements::{NAMES_BYTES_MAX, NoRoom, Statements};
use crate::fence::{Classified, Name, NameSpace, PreparedText};

/// Bytes of a statement's text that are kept for the rejection log.
pub(crate) const EXCERPT_MAX: usize = 1024;

/// Limit for the statements that clients leave in a server connection that is not reset between them.
const LEFT_MAX: usize = 200;

/// State of the unnamed statement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Unnamed {
    /// Bound since it was parsed, or none.
    #[default]
    Bound,
    /// Parsed, and nothing was bound to the unnamed portal since.
    Unbound,
    /// Parsed in another server connection.
    Elsewhere,
    /// None, but the server may have another client's.
    OfAnother,
}

/// Where the statement of a name is.
enum Found<'a> {
    Here(&'a PreparedText),
    /// In another server connection. This one has none of this name, or another client's.
    Elsewhere(&'a PreparedText),
    /// It is another client's.
    OfAnother,
    Nowhere,
}

/// The names of one session.
#[derive(Debug, Default)]
pub struct Names {
    unnamed_statement: PreparedText,
    unnamed: Unnamed,
    unnamed_portal: PreparedText,
    statements: NameTable,
    portals: NameTable,
    /// Whether portals that were bound after a savepoint of the open transaction have ended.
    is_rolled_back: bool,
    /// All statements of a client whose server connection is lent, also those that this one does not have.
    of_client: Option<Box<Statements>>,
}

impl Names {
    /// Applies a change that the server has confirmed.
    #[inline]
    pub(crate) fn confirm(&mut self, change: NameChange) {
        match change {
            NameChange::None | NameChange::Describe(_) => {}
            NameChange::UnnamedStatement(meaning) => {
                self.unnamed_statement = meaning;
                self.unnamed = Unnamed::Unbound;
            }
            NameChange::UnnamedPortal(meaning) => {
                self.unnamed_portal = meaning;
                if self.unnamed == Unnamed::Unbound {
                    self.unnamed = Unnamed::Bound;
                }
            }
            NameChange::Named(change) => self.confirm_named(*change),
            NameChange::Vacate(name) => drop(self.remove_here(Name::statement(&name))),
        }
    }

    fn confirm_named(&mut self, change: NamedChange) {
        let NamedChange {
            kind,
            name,
            meaning,
        } = change;
        match meaning {
            None => self.remove(Name::new(kind, &name)),
            Some(meaning) if !Name::new(kind, &name).is_comparable() => {
                self.table(kind).lose(&meaning)
            }
            Some(meaning) => self.insert(kind, name, meaning),
        }
    }

    fn insert(&mut self, kind: NameSpace, name: Box<[u8]>, meaning: PreparedText) {
        // PostgreSQL replaces only unnamed ones. If this name seems to exist, the proxy has misunderstood it.
        let meaning = match self.remove_here(Name::new(kind, &name)) {
            // It was not known whether it did.
            Some(PreparedText::Unknown) => Some(meaning),
            Some(_) if kind == NameSpace::Portal && self.is_rolled_back => Some(meaning),
            Some(before) => {
                let worst = Lost::of(&before).max(Lost::of(&meaning));
                worst.meaning().cloned()
            }
            None => Some(meaning),
        }
        .unwrap_or_default();
        let bytes = self.bytes() + entry_bytes(&name, &meaning);
        if bytes > NAMES_BYTES_MAX {
            return self.table(kind).lose(&meaning);
        }
        if kind == NameSpace::Statement
            && let Some(all) = &mut self.of_client
            && let Err(NoRoom) = all.insert(&name, &meaning)
        {
            return self.statements.lose(&meaning);
        }
        self.table(kind).insert(name, meaning);
    }

    const fn bytes(&self) -> usize {
        self.statements.bytes() + self.portals.bytes()
    }

    const fn table(&mut self, kind: NameSpace) -> &mut NameTable {
        match kind {
            NameSpace::Statement => &mut self.statements,
            NameSpace::Portal => &mut self.portals,
        }
    }

    /// What a name stands for, if anything. Private to the session: requests in flight may change it, see `lookup`.
    #[inline]
    pub(super) fn get(&self, name: Name<'_>) -> Option<&PreparedText> {
        match (name.kind(), name.is_unnamed()) {
            (NameSpace::Statement, true) => match &self.unnamed_statement {
                PreparedText::Unknown => None,
                known => Some(known),
            },
            (NameSpace::Portal, true) => Some(&self.unnamed_portal),
            (NameSpace::Statement, false) if self.of_client.is_none() => {
                let known = self.statements.kept(name.bytes());
                known.or(self.statements.unknown())
            }
            (NameSpace::Statement, false) => match self.find_statement(name.bytes()) {
                Found::Here(known) => Some(known),
                Found::Elsewhere(_) | Found::OfAnother => None,
                Found::Nowhere => self.statements.unknown(),
            },
            (NameSpace::Portal, false) => {
                let known = self.portals.kept(name.bytes());
                known.or(self.portals.unknown())
            }
        }
    }

    fn find_statement(&self, name: &[u8]) -> Found<'_> {
        let here = self.statements.kept(name);
        let Some(all) = &self.of_client else {
            return here.map_or(Found::Nowhere, Found::Here);
        };
        match (all.get(name), here) {
            (Some(own), Some(here @ PreparedText::Classified(_))) => {
                match (own.source(), here.source()) {
                    (Some(own), Some(other)) if Arc::ptr_eq(own, other) => Found::Here(here),
                    (Some(source), Some(other)) if source.is_served_by(other) => Found::Here(own),
                    (Some(_), _) => Found::Elsewhere(own),
                    // Its client has not left this server connection since.
                    (None, _) => Found::Here(here),
                }
            }
            (None, Some(PreparedText::Classified(_))) => Found::OfAnother,
            (_, Some(here)) => Found::Here(here),
            (Some(own), None) => Found::Elsewhere(own),
            (None, None) => Found::Nowhere,
        }
    }

    /// Whether this server connection has, or may have, another client's statement of this name.
    pub(super) fn is_taken(&self, name: Name<'_>) -> bool {
        if name.is_unnamed() {
            return self.unnamed == Unnamed::OfAnother;
        }
        match self.find_statement(name.bytes()) {
            Found::Elsewhere(_) => self.statements.kept(name.bytes()).is_some(),
            Found::OfAnother => true,
            Found::Here(_) | Found::Nowhere => false,
        }
    }

    /// Names of the statements that other clients have left in a lent server connection.
    pub(super) fn of_others(&self) -> Vec<Box<[u8]>> {
        let all = self.of_client.iter().flat_map(|_| self.statements.names());
        all.filter(|name| self.is_taken(Name::statement(name)))
            .map(Into::into)
            .collect()
    }

    /// Whether the client has statements that have a name, and may mean something else after a SET.
    pub(super) fn depend_on_settings(&self) -> bool {
        let of_client = self.of_client.as_ref();
        of_client.is_some_and(|all| all.depend_on_settings())
    }

    /// Whether a statement has a name.
    pub(super) fn has_named(&self) -> bool {
        self.statements.len() > 0
    }

    /// Whether its statements may stay for the next clients.
    pub(super) fn are_few(&self) -> bool {
        self.statements.len() <= LEFT_MAX && self.statements.bytes() <= NAMES_BYTES_MAX / 4
    }

    /// Whether it has a statement that the client would not find in another one.
    pub(super) fn keep_client(&self) -> bool {
        let only_here = |all: &Statements| all.has_unmovable();
        self.statements.has_lost()
            || self.of_client.as_deref().is_some_and(only_here)
            || (self.unnamed == Unnamed::Unbound && self.unnamed_statement.source().is_none())
    }

    /// Whether this name of a portal may stand for any statement of the client.
    pub(super) fn may_have_lost(&self, portal: Name<'_>) -> bool {
        !portal.is_comparable() || self.portals.has_lost() || self.statements.has_lost()
    }

    /// Begins to serve a client with these statements.
    pub(super) fn enter(&mut self, of_client: Box<Statements>) {
        let is_here = match (&self.unnamed_statement, &of_client.unnamed) {
            (PreparedText::Classified(here), Some(unnamed)) => Arc::ptr_eq(here, unnamed),
            _ => false,
        };
        if !is_here {
            self.unnamed_statement = PreparedText::Unknown;
            self.unnamed = match of_client.unnamed {
                Some(_) => Unnamed::Elsewhere,
                None => Unnamed::OfAnother,
            };
        }
        self.of_client = Some(of_client);
    }

    /// Gives the client its statements back.
    pub(super) fn leave(&mut self) -> Option<Box<Statements>> {
        let mut all = self.of_client.take()?;
        let is_elsewhere = self.unnamed == Unnamed::Elsewhere;
        all.unnamed = match &self.unnamed_statement {
            PreparedText::Classified(here) if here.source.is_some() => Some(Arc::clone(here)),
            _ => all.unnamed.filter(|_| is_elsewhere),
        };
        Some(all)
    }

    /// Statement of the client that this server connection does not have.
    pub(super) fn elsewhere(&self, name: Name<'_>) -> Option<&Arc<Classified>> {
        if name.is_unnamed() {
            let unnamed = self.of_client.as_ref()?.unnamed.as_ref();
            return unnamed.filter(|_| self.unnamed == Unnamed::Elsewhere);
        }
        match self.find_statement(name.bytes()) {
            Found::Elsewhere(PreparedText::Classified(own)) => Some(own),
            _ => None,
        }
    }

    /// Notes that the statements that differ from what the client was told are not those of the client.
    pub(super) fn forget_outdated(&mut self) {
        let is_outdated = |meaning: &PreparedText| {
            let source = meaning.source();
            source.is_some_and(|source| source.is_outdated())
        };
        self.statements.disown(|_, meaning| is_outdated(meaning));
        if is_outdated(&self.unnamed_statement) {
            self.unnamed_statement = PreparedText::Unknown;
            self.unnamed = Unnamed::Elsewhere;
        }
    }

    /// Notes that PostgreSQL may not run statements as they are here: a plan of another client's is older than what it
    /// reads. This client's own are parsed again.
    #[cold]
    pub(super) fn distrust_others(&mut self) {
        if let Some(all) = &self.of_client {
            self.statements.disown(|name, here| {
                let own = all.get(name).and_then(PreparedText::source);
                own.is_some_and(|own| here.source().is_none_or(|here| !Arc::ptr_eq(own, here)))
            });
        }
    }

    /// Notes that a Parse of the unnamed statement has failed. PostgreSQL has removed the one before it.
    /// <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY>
    pub(super) fn on_unnamed_failed(&mut self) {
        if self.of_client.is_some() {
            self.unnamed_statement = PreparedText::Unknown;
            // A malformed Parse has removed none.
            self.unnamed = Unnamed::OfAnother;
        }
    }

    /// Notes a completed PREPARE.
    pub(crate) fn prepared(&mut self, name: &str, effects: &Arc<Effects>) {
        let meaning = PreparedText::Sql(Arc::clone(effects));
        self.confirm(NameChange::set(Name::statement(name.as_bytes()), meaning));
    }

    /// Notes a completed DEALLOCATE.
    pub(crate) fn deallocated(&mut self, name: &str) {
        self.remove(Name::statement(name.as_bytes()));
    }

    /// Notes a PREPARE or DEALLOCATE that was answered with an error. It has taken effect if only the commit after it
    /// has failed: neither is undone.
    pub(super) fn doubt_named(&mut self, name: &str) {
        let name = Name::statement(name.as_bytes());
        // What the client has elsewhere is parsed again in any case.
        if self.elsewhere(name).is_some() {
            return;
        }
        let known = self.statements.kept(name.bytes());
        let worst = known.map_or(Lost::Some, Lost::of);
        let meaning = worst.meaning().cloned().unwrap_or_default();
        self.remove_here(name);
        self.confirm(NameChange::set(name, meaning));
    }

    /// Forgets a name that the server has forgotten, also if it never had it.
    fn remove(&mut self, name: Name<'_>) {
        if name.kind() == NameSpace::Statement {
            self.remove_elsewhere(name);
        }
        self.remove_here(name);
    }

    /// Forgets the client's statement of a name that this server connection does not have.
    pub(super) fn remove_elsewhere(&mut self, name: Name<'_>) {
        if let Some(all) = &mut self.of_client {
            all.remove(name.bytes());
        }
    }

    fn remove_here(&mut self, name: Name<'_>) -> Option<PreparedText> {
        match (name.kind(), name.is_unnamed()) {
            (NameSpace::Statement, true) => {
                self.unnamed = Unnamed::Bound;
                Some(std::mem::take(&mut self.unnamed_statement))
            }
            (NameSpace::Portal, true) => Some(std::mem::take(&mut self.unnamed_portal)),
            (kind, false) => self.table(kind).remove(name.bytes()),
        }
    }

    /// Notes a completed DEALLOCATE ALL or DISCARD ALL.
    pub(crate) fn deallocated_all(&mut self) {
        self.statements = NameTable::default();
        if let Some(all) = &mut self.of_client {
            all.clear();
        }
    }

    /// Marks each name of a statement as unclear, because a function may have run PREPARE or DEALLOCATE.
    pub(crate) fn forget_statements(&mut self) {
        self.statements.doubt();
    }

    /// Destroys the unnamed statement and portal, as a simple Query does.
    #[inline]
    pub(crate) fn on_simple_query(&mut self) {
        self.unnamed = Unnamed::Bound;
        self.unnamed_statement = PreparedText::Unknown;
        self.unnamed_portal = PreparedText::Unknown;
    }

    /// Notes that portals bound after a savepoint have ended with it.
    /// <https://www.postgresql.org/docs/current/sql-rollback-to.html>
    pub(crate) const fn on_rollback_to(&mut self) {
        self.is_rolled_back = true;
    }

    /// Ends the portals with their transaction.
    #[inline]
    pub(crate) fn end_transaction(&mut self) {
        self.portals = NameTable::default();
        self.is_rolled_back = false;
    }
}

#[cfg(test)]
mod tests {
    use pgpalisade_policies::Class;

    use super::*;
    use crate::fence::Classified;
    use crate::ledger::Ledger;
    use crate::lookup::{Unclear, find};

    fn read() -> PreparedText {
        PreparedText::Sql(Arc::new(Effects::none()))
    }

    fn write() -> PreparedText {
        PreparedText::Sql(Arc::new(Effects::unknown(None)))
    }

    fn parsed(names: &mut Names, name: &[u8], meaning: PreparedText) {
        names.confirm(NameChange::set(Name::statement(name), meaning));
    }

    fn bound(names: &mut Names, name: &[u8], meaning: PreparedText) {
        names.confirm(NameChange::set(Name::portal(name), meaning));
    }

    fn class(names: &Names, name: Name<'_>) -> Class {
        let ledger = Ledger::default();
        let found = find(names, &ledger, name).unwrap();
        found.map_or(Class::Write, |meaning| meaning.effects().class)
    }

    #[test]
    fn a_name_means_what_was_confirmed() {
        let (s, p) = (Name::statement(b"s"), Name::portal(b"p"));
        let mut names = Names::default();
        assert_eq!(class(&names, s), Class::Write);
        parsed(&mut names, b"s", read());
        assert_eq!(class(&names, s), Class::Read);
        bound(&mut names, b"p", read());
        assert_eq!(class(&names, p), Class::Read);
        names.end_transaction();
        assert_eq!(class(&names, p), Class::Write);
        assert_eq!(class(&names, s), Class::Read);
        names.deallocated("s");
        assert_eq!(names.bytes(), 0);
        parsed(&mut names, b"s", write());
        assert_eq!(class(&names, s), Class::Write);
        names.deallocated_all();
        assert_eq!(names.bytes(), 0);
    }

    #[test]
    fn a_name_that_is_given_twice_is_not_understood() {
        let mut names = Names::default();
        for give in [parsed, bound] {
            give(&mut names, b"n", write());
            give(&mut names, b"n", read());
        }
        assert_eq!(class(&names, Name::statement(b"n")), Class::Write);
        assert_eq!(class(&names, Name::portal(b"n")), Class::Write);
        // A portal may have ended with its savepoint.
        names.on_rollback_to();
        for (give, expect) in [
            (parsed as fn(&mut Names, &[u8], PreparedText), Class::Write),
            (bound, Class::Read),
        ] {
            give(&mut names, b"m", write());
            give(&mut names, b"m", read());
            let name = match expect {
                Class::Write => Name::statement(b"m"),
                Class::Read => Name::portal(b"m"),
            };
            assert_eq!(class(&names, name), expect);
        }
        // Unnamed ones are replaced.
        for give in [parsed, bound] {
            give(&mut names, b"", write());
            give(&mut names, b"", read());
        }
        assert_eq!(class(&names, Name::statement(b"")), Class::Read);
        assert_eq!(class(&names, Name::portal(b"")), Class::Read);
        names.on_simple_query();
        assert_eq!(class(&names, Name::statement(b"")), Class::Write);
        assert_eq!(class(&names, Name::portal(b"")), Class::Write);
    }

    #[test]
    fn names_are_compared_as_postgresql_does() {
        for (length, is_same) in [(62, false), (63, true), (64, true), (200, true)] {
            let (a, b) = ("x".repeat(length), "x".repeat(length) + "y");
            let mut names = Names::default();
            parsed(&mut names, a.as_bytes(), read());
            let expect = if is_same { Class::Read } else { Class::Write };
            assert_eq!(
                class(&names, Name::statement(b.as_bytes())),
                expect,
                "{length}"
            );
        }
    }

    /// A text that changes the session.
    fn steering() -> PreparedText {
        let lexing = pgpalisade_policies::TextEncoding::Utf8;
        PreparedText::Classified(Arc::new(Classified {
            verdict: Arc::new(pgpalisade_policies::classify(b"RESET ALL", lexing)),
            excerpt: None,
            needs_parse: true,
            source: None,
        }))
    }

    #[track_caller]
    fn is_lost(names: &Names, name: Name<'_>, expect: Lost) {
        let ledger = Ledger::default();
        let found = find(names, &ledger, name).unwrap();
        assert_eq!(found.map_or(Lost::Nothing, Lost::of), expect);
    }

    #[test]
    fn a_name_that_the_server_may_read_otherwise_is_any_that_was_lost() {
        let (umlaut, other) = ("\u{e4}".as_bytes(), "\u{e9}".as_bytes());
        for (give, name, to) in [
            (
                parsed as fn(&mut Names, &[u8], PreparedText),
                Name::statement(other),
                NameSpace::Statement,
            ),
            (bound, Name::portal(other), NameSpace::Portal),
        ] {
            let mut names = Names::default();
            is_lost(&names, name, Lost::Nothing);
            give(&mut names, umlaut, read());
            is_lost(&names, name, Lost::Some);
            give(&mut names, umlaut, steering());
            is_lost(&names, name, Lost::MaySteer);
            give(&mut names, umlaut, read());
            is_lost(&names, name, Lost::MaySteer);
            match to {
                NameSpace::Statement => names.deallocated_all(),
                NameSpace::Portal => names.end_transaction(),
            }
            is_lost(&names, name, Lost::Nothing);
        }
        assert!(!Name::statement(umlaut).is_comparable());
    }

    #[test]
    fn a_name_that_the_server_may_read_otherwise_waits_for_those_in_flight() {
        let names = Names::default();
        let umlaut = Name::statement("\u{e4}".as_bytes());
        let mut ledger = Ledger::default();
        let mut parse = crate::in_flight::InFlight::client(crate::in_flight::Request::Parse, None);
        parse.name = NameChange::set(Name::statement("\u{e9}".as_bytes()), read());
        ledger.push(parse);
        assert_eq!(find(&names, &ledger, umlaut).unwrap_err(), Unclear);
    }

    #[test]
    fn two_texts_of_one_name_are_the_worse_of_both() {
        let mut names = Names::default();
        let name = Name::statement(b"n");
        parsed(&mut names, b"n", steering());
        parsed(&mut names, b"n", read());
        is_lost(&names, name, Lost::MaySteer);
    }

    #[test]
    fn names_that_may_stand_for_something_else() {
        let classified = |text: &str| {
            PreparedText::Classified(Arc::new(Classified {
                verdict: Arc::new(pgpalisade_policies::classify(
                    text.as_bytes(),
                    pgpalisade_policies::TextEncoding::Utf8,
                )),
                excerpt: None,
                needs_parse: true,
                source: None,
            }))
        };
        let (runs, z) = (Name::statement(b"runs"), Name::statement(b"z"));
        for (text, before) in [
            ("SELECT 1", Lost::Some),
            // A text that changed the session may still do so.
            ("DEALLOCATE z", Lost::MaySteer),
        ] {
            let mut names = Names::default();
            parsed(&mut names, b"runs", classified(text));
            parsed(&mut names, b"z", read());
            names.forget_statements();
            is_lost(&names, z, Lost::Some);
            is_lost(&names, runs, before);
            is_lost(&names, Name::statement(b"new"), Lost::Some);
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut names = Names::default();
        let name = |at: usize| format!("{at:063}");
        let room = NAMES_BYTES_MAX / entry_bytes(name(0).as_bytes(), &read());
        for at in 0..room + 10 {
            bound(&mut names, name(at).as_bytes(), read());
        }
        assert_eq!(class(&names, Name::portal(name(0).as_bytes())), Class::Read);
        assert_eq!(
            class(&names, Name::portal(name(room + 1).as_bytes())),
            Class::Write
        );
        is_lost(&names, Name::portal(b"\xff"), Lost::Some);
        bound(&mut names, name(room + 11).as_bytes(), steering());
        is_lost(&names, Name::portal(b"other"), Lost::MaySteer);
        names.end_transaction();
        assert_eq!(names.bytes(), 0);
    }
}
