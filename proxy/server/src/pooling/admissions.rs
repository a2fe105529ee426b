//! Logins that PostgreSQL has admitted within the last minute. A client with one of them needs no new connection.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use pgpalisade_logins::Credentials;
use pgpalisade_session::greeting::Greeting;
use tokio::sync::Notify;

use super::SharedLogin;

const VALID_FOR: Duration = Duration::from_secs(60);

/// By startup packet, because PostgreSQL decides for user and database.
#[derive(Debug, Clone, Default)]
pub(crate) struct Admissions {
    all: Arc<Mutex<HashMap<Bytes, Admission>>>,
    /// Told of each.
    noted: Arc<Notify>,
}

/// A login with the credentials in use, and what PostgreSQL said to it.
pub(crate) type Admitted = (SharedLogin, Arc<Greeting>);

#[derive(Debug)]
struct Admission {
    at: Instant,
    /// Weak: with the last client and connection, the credentials go. `None`: the server has asked for nothing.
    credentials: Option<Weak<Credentials>>,
    greeting: Arc<Greeting>,
}

impl Admission {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < VALID_FOR
    }

    /// Whether clients have the credentials, or a client without any may come.
    fn is_kept(&self, now: Instant) -> bool {
        match &self.credentials {
            Some(known) => known.strong_count() > 0,
            None => self.is_recent(now),
        }
    }

    /// The login with the credentials in use, if they are the same.
    fn shared(&self, login: &SharedLogin) -> Option<SharedLogin> {
        let credentials = match (&self.credentials, &login.credentials) {
            (None, None) => None,
            (Some(known), Some(shown)) => Some(known.upgrade().filter(|known| known == shown)?),
            _ => return None,
        };
        Some(SharedLogin {
            packet: login.packet.clone(),
            credentials,
        })
    }
}

impl Admissions {
    /// Notes that PostgreSQL has admitted this login. Credentials in use stay those that its clients share.
    pub(crate) fn note(&self, login: &SharedLogin, greeting: &Arc<Greeting>, now: Instant) {
        let mut admissions = self.all.lock();
        admissions.retain(|_, admission| admission.is_kept(now));
        let known = admissions.get(&login.packet);
        let known = known.and_then(|known| known.shared(login));
        let credentials = &known.as_ref().unwrap_or(login).credentials;
        let admission = Admission {
            at: now,
            credentials: credentials.as_ref().map(Arc::downgrade),
            greeting: Arc::clone(greeting),
        };
        admissions.insert(login.packet.clone(), admission);
        drop(admissions);
        self.noted.notify_waiters();
    }

    /// Waits until PostgreSQL has admitted this login, for another client.
    pub(crate) async fn admitted(&self, login: &SharedLogin) -> Admitted {
        loop {
            let noted = self.noted.notified();
            if let Some(admitted) = self.find(login, Instant::now()) {
                return admitted;
            }
            noted.await;
        }
    }

    /// Notes that PostgreSQL has refused this login.
    pub(crate) fn forget(&self, login: &SharedLogin) {
        let mut admissions = self.all.lock();
        let known = admissions.get(&login.packet);
        if known.is_some_and(|known| known.shared(login).is_some()) {
            admissions.remove(&login.packet);
        }
    }

    /// What PostgreSQL said to this login within the last minute.
    pub(crate) fn find(&self, login: &SharedLogin, now: Instant) -> Option<Admitted> {
        let admissions = self.all.lock();
        let known = admissions.get(&login.packet);
        let known = known.filter(|admission| admission.is_recent(now))?;
        Some((known.shared(login)?, Arc::clone(&known.greeting)))
    }
}

#[cfg(test)]
mod tests {
    use pgpalisade_logins::Password;

    use super::*;

    fn login(packet: &'static str, password: &str) -> SharedLogin {
        let mut body = format!("{password}\0").into_bytes();
        let credentials = match password {
            "" => None,
            _ => Password::take(&mut body).ok().map(Credentials::Password),
        };
        SharedLogin {
            packet: Bytes::from_static(packet.as_bytes()),
            credentials: credentials.map(Arc::new),
        }
    }

    #[test]
    fn only_the_same_login_is_admitted_and_only_for_a_minute() {
        let (admissions, now) = (Admissions::default(), Instant::now());
        let (app, trusted) = (login("app", "right"), login("trusted", ""));
        let admitted =
            |login: &SharedLogin, after: Duration| admissions.find(login, now + after).is_some();
        assert!(!admitted(&app, Duration::ZERO));
        for login in [&app, &trusted] {
            admissions.note(login, &Arc::default(), now);
        }
        let just = VALID_FOR - Duration::from_millis(1);
        for (packet, password, after, expect) in [
            ("app", "right", just, true),
            ("app", "right", VALID_FOR, false),
            ("app", "wrong", Duration::ZERO, false),
            ("app", "", Duration::ZERO, false),
            ("other", "right", Duration::ZERO, false),
            ("trusted", "", just, true),
            ("trusted", "right", Duration::ZERO, false),
        ] {
            assert_eq!(
                admitted(&login(packet, password), after),
                expect,
                "{packet} {password}"
            );
        }
    }

    #[test]
    fn clients_share_one_copy_which_goes_with_the_last() {
        let (admissions, now) = (Admissions::default(), Instant::now());
        let first = login("app", "right");
        admissions.note(&first, &Arc::default(), now);
        let (second, _) = admissions.find(&login("app", "right"), now).unwrap();
        let copy = |login: &SharedLogin| Arc::as_ptr(login.credentials.as_ref().unwrap());
        assert_eq!(copy(&first), copy(&second));
        drop(first);
        assert!(admissions.find(&login("app", "right"), now).is_some());
        drop(second);
        assert!(admissions.find(&login("app", "right"), now).is_none());
        admissions.note(&login("other", ""), &Arc::default(), now);
        assert_eq!(admissions.all.lock().len(), 1);
    }

    #[test]
    fn clients_that_come_later_or_together_share_one_copy_too() {
        let (admissions, now) = (Admissions::default(), Instant::now());
        let first = login("app", "right");
        admissions.note(&first, &Arc::default(), now);
        for after in [Duration::ZERO, VALID_FOR] {
            let next = login("app", "right");
            admissions.note(&next, &Arc::default(), now + after);
            let (shared, _) = admissions.find(&next, now + after).unwrap();
            assert!(shared == first && shared != next, "{after:?}");
        }
        let changed = login("app", "changed");
        admissions.note(&changed, &Arc::default(), now);
        let (shared, _) = admissions.find(&login("app", "changed"), now).unwrap();
        assert!(shared == changed);
    }

    #[test]
    fn a_refusal_ends_the_admission_of_the_refused_credentials() {
        let (admissions, now) = (Admissions::default(), Instant::now());
        let app = login("app", "right");
        admissions.note(&app, &Arc::default(), now);
        admissions.forget(&login("app", "wrong"));
        assert!(admissions.find(&app, now).is_some());
        admissions.forget(&login("app", "right"));
        assert!(admissions.find(&app, now).is_none());
    }
}
