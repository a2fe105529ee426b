//! Very many logins that wait for few backends.

use std::cell::Cell;
use std::cmp::Ordering;
use std::rc::Rc;
use std::time::Duration;

use super::tables::limits;
use super::world::{Places, Siblings};
use crate::{Access, ClientId, Order, Pool};

thread_local! {
    static COMPARISONS: Cell<u64> = const { Cell::new(0) };
}

/// A login that counts how often it is compared.
#[derive(Clone, Debug)]
struct Counted(u64);

impl Ord for Counted {
    fn cmp(&self, other: &Self) -> Ordering {
        COMPARISONS.set(COMPARISONS.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Counted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Counted {}

/// Comparisons for each client that is served, one of each login.
fn comparisons(logins: u64) -> u64 {
    let (now, siblings) = (Duration::ZERO, Rc::<Siblings>::default());
    let mut pool: Pool<Counted, u8, _> = Pool::new(limits(), Places::new(siblings, 4, 1, 4));
    for login in 0..logins {
        pool.wanted(now, ClientId(login), &Counted(login), Access::ReadOnly);
    }
    COMPARISONS.set(0);
    let mut served = 0;
    while let Some(order) = pool.next_order() {
        match order {
            Order::Open { backend, .. } => pool.opened(now, backend, 0),
            Order::Lend {
                client, backend, ..
            } => {
                served += 1;
                pool.left(client);
                pool.given_back(now, backend, Access::ReadOnly, crate::Residue::None);
            }
            Order::Close(id) => pool.ended(now, id),
            order => panic!("{order:?}"),
        }
    }
    assert_eq!(served, logins);
    COMPARISONS.get() / logins
}

#[test]
fn each_costs_no_more_than_a_look_at_all() {
    let [few, many] = [100, 400].map(comparisons);
    assert!(many < few * 8, "{few} for 100 logins, {many} for 400");
}
