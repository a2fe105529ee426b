//! Exempt windows: times and stretches of the log without a promise. Between them lie sections, counted from 0 in
//! each scope: an acknowledgement in one section says nothing about commits in another.

use std::collections::BTreeMap;

use crate::proof::history::Event;

#[derive(Clone, Copy, Debug)]
struct Window {
    begin: u64,
    end: u64,
    first: u64,
    last: u64,
}

/// By scope, in order.
#[derive(Debug, Default)]
pub(super) struct Exempt<'a>(BTreeMap<&'a str, Vec<Window>>);

impl<'a> Exempt<'a> {
    pub(super) fn take(&mut self, event: &'a Event) {
        if let Event::Exempt {
            scope,
            begin,
            end,
            first,
            last,
            ..
        } = event
        {
            let (begin, end, first, last) = (*begin, *end, *first, *last);
            let window = Window {
                begin,
                end,
                first,
                last,
            };
            self.0.entry(scope).or_default().push(window);
        }
    }

    fn of(&self, scope: &str) -> &[Window] {
        self.0.get(scope).map_or(&[], Vec::as_slice)
    }

    /// Section that contains a whole period.
    pub(super) fn section(&self, scope: &str, from: u64, to: u64) -> Option<usize> {
        let windows = self.of(scope);
        let inside = windows
            .iter()
            .any(|window| from <= window.end && window.begin <= to);
        let before = windows.iter().filter(|window| window.end < from).count();
        (!inside).then_some(before)
    }

    pub(super) fn section_of_log(&self, scope: &str, lsn: u64) -> Option<usize> {
        let windows = self.of(scope);
        let inside = windows
            .iter()
            .any(|window| window.first < lsn && lsn <= window.last);
        let before = windows.iter().filter(|window| window.last < lsn).count();
        (!inside).then_some(before)
    }

    /// Log position at which a section ends.
    pub(super) fn end_of(&self, scope: &str, section: usize) -> u64 {
        let window = self.of(scope).get(section);
        window.map_or(u64::MAX, |window| window.first)
    }
}
