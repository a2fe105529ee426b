//! What etcd reports: the state of its members, and of a candidate in an election.

/// Current state of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// URL, without user and password.
    pub url: String,
    /// Report of the member, or why it did not answer within a second.
    pub state: Result<Member, String>,
}

/// Report of a member of the etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Version, for example `3.4.23`.
    pub version: String,
    /// Cluster of the member. All endpoints should name the same one.
    pub cluster_id: u64,
    /// Whether the member leads, follows a leader, or knows none.
    pub role: MemberRole,
    /// Alarms and other errors. Empty if the member is healthy.
    pub errors: Vec<String>,
}

/// Role of a member in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum MemberRole {
    /// The member leads.
    Leader,
    /// The member follows a leader.
    Follower,
    /// The member copies the data and has no vote yet.
    Learner,
    /// The member knows no leader: it is cut off, or no majority is left. It cannot store anything.
    #[strum(serialize = "without a leader")]
    NoLeader,
}

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
