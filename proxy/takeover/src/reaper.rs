//! The reaper: removes the records of sessions that PostgreSQL no longer has.
//!
//! Records never expire by time. They are removed after (pid, backend_start) is seen to be gone.

use std::collections::BTreeSet;

use pgpalisade_authority::{Backend, Cluster};

use super::error::DeclareError;
use super::machine::{Event, Request, Step};

/// One round, as a machine.
#[derive(Debug, Default)]
pub(super) struct Round {
    known: BTreeSet<Backend>,
    recorded: Option<Cluster>,
}

impl Round {
    pub(super) fn handle(&mut self, event: Event) -> Step {
        match event {
            // The records first: a session that registers after the look must not seem to be gone.
            Event::Begin => Step::ask(Request::Sessions),
            Event::Sessions(records) if records.is_empty() => Step::End(Ok(())),
            // After the records: they belong to the cluster on record now, or to one that it has replaced.
            Event::Sessions(records) => {
                self.known = records.into_iter().map(|(_, r)| r.backend).collect();
                Step::ask(Request::Recorded)
            }
            Event::Recorded(recorded) => {
                self.recorded = recorded;
                Step::ask(Request::Alive(self.known.iter().copied().collect()))
            }
            Event::Alive(alive, cluster) => self.on_alive(&alive, cluster),
            Event::Done => Step::End(Ok(())),
            other => Step::End(Err(other.into_error())),
        }
    }

    fn on_alive(&self, alive: &BTreeSet<Backend>, ours: Cluster) -> Step {
        match self.recorded {
            // This proxy leads to another server than those that register. Sessions that it does not see may live
            // there.
            Some(recorded) if recorded != ours => {
                return Step::End(Err(DeclareError::WrongCluster { ours, recorded }));
            }
            _ => {}
        }
        let gone: Vec<Backend> = self.known.difference(alive).copied().collect();
        if gone.is_empty() {
            Step::End(Ok(()))
        } else {
            Step::ask(Request::Forget(gone))
        }
    }
}

#[cfg(test)]
mod tests {
    use pgpalisade_authority::Scope;

    use super::super::machine::tests::{LATER, OURS, registered};
    use super::*;

    fn backends(of: &[(i32, i64)]) -> Vec<Backend> {
        let backend = |(pid, started_us)| Backend { pid, started_us };
        of.iter().copied().map(backend).collect()
    }

    fn records(of: &[(i32, i64)]) -> Event {
        let records = registered(backends(of)).into_iter();
        Event::Sessions(records.map(|record| (Scope::default(), record)).collect())
    }

    fn told(step: &Step) -> String {
        match step {
            Step::Ask(_, request) => format!("{request:?}"),
            Step::End(Ok(())) => "end".to_owned(),
            Step::End(Err(error)) => error.to_string(),
        }
    }

    #[test]
    fn only_what_is_gone_from_the_cluster_on_record_is_removed() {
        let wrong = DeclareError::WrongCluster {
            ours: OURS,
            recorded: LATER,
        };
        let wrong = wrong.to_string();
        // Registered; the cluster on record; found alive, in our cluster; removed, or the error.
        type Sessions<'a> = &'a [(i32, i64)];
        let table: [(Sessions<'_>, _, Sessions<'_>, Result<Sessions<'_>, &str>); 6] = [
            (&[(7, 1), (8, 1)], Some(OURS), &[(8, 1)], Ok(&[(7, 1)])),
            (&[(7, 1)], None, &[], Ok(&[(7, 1)])),
            (&[(7, 1)], Some(OURS), &[(7, 1)], Ok(&[])),
            // Another session has the process id now.
            (&[(7, 1)], Some(OURS), &[(7, 2)], Ok(&[(7, 1)])),
            // In two scopes.
            (&[(7, 1), (7, 1)], Some(OURS), &[], Ok(&[(7, 1)])),
            // It may live on the other server.
            (&[(7, 1)], Some(LATER), &[], Err(&wrong)),
        ];
        for (sessions, recorded, alive, removed) in table {
            let mut round = Round::default();
            let ask = |round: &mut Round, event| told(&round.handle(event));
            assert_eq!(ask(&mut round, Event::Begin), "Sessions");
            assert_eq!(ask(&mut round, records(sessions)), "Recorded");
            let looked = ask(&mut round, Event::Recorded(recorded));
            assert!(looked.starts_with("Alive"), "{looked}");
            let alive = backends(alive).into_iter().collect();
            let step = ask(&mut round, Event::Alive(alive, OURS));
            let expect = match removed {
                Ok([]) => "end".to_owned(),
                Ok(gone) => format!("{:?}", Request::Forget(backends(gone))),
                Err(error) => error.to_owned(),
            };
            assert_eq!(step, expect, "{sessions:?} {recorded:?}");
            assert_eq!(ask(&mut round, Event::Done), "end");
        }
    }

    #[test]
    fn without_records_nothing_is_looked_at() {
        let step = Round::default().handle(records(&[]));
        assert_eq!(told(&step), "end");
        let error = DeclareError::MarkIsLower { mark: None };
        let step = Round::default().handle(Event::Failed(error.clone()));
        assert_eq!(told(&step), error.to_string());
    }
}
