//! What the pools of several workers share.

/// Places for backends of all logins.
pub trait Budget {
    /// Takes a place, if one is free that no other pool has waited longer for. Otherwise this pool waits for one.
    fn take(&mut self) -> bool;
    fn give_back(&mut self);
    /// Says that this pool waits for no place.
    fn forgo(&mut self);
    /// Says that a client has waited long for the place that this pool waits for.
    fn urge(&mut self);
    fn debt(&self) -> Debt;
    /// Lets a client keep a backend beyond a transaction, if few enough are kept.
    fn pin(&mut self) -> bool;
    fn unpin(&mut self);
}

/// What a pool is to give up for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Debt {
    Nothing,
    /// A backend that is idle.
    Idle,
    /// If none is idle, one that a client has, once that needs it no more.
    Any,
}
