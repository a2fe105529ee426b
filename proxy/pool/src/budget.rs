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
    /// Lends a backend to a client without tokens. False if what is left is kept for those with tokens, or another pool
    /// is first.
    fn read(&mut self) -> bool;
    /// Whether [`Self::read`] would lend one.
    fn may_read(&self) -> bool;
    fn end_read(&mut self);
    /// Says that a client without tokens has waited long for one: this pool is next.
    fn urge_read(&mut self);
    /// Says that none has.
    fn forgo_read(&mut self);
    /// Whether one of another pool has.
    fn owes_read(&self) -> bool;
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
