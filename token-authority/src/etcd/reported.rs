//! What etcd reports of a candidate in an election.

/// Status of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CandidateStatus {
    /// The candidate is first.
    Leads,
    /// Others are in front of the candidate.
    Waits,
    /// The candidate has left the queue.
    Gone,
}
