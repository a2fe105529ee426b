//! Who runs this command, in words for people: the user and the host, as the operating system knows them.

use std::fs;

use rustix::process::getuid;
use rustix::system::uname;

/// `alice@db1`; behind sudo `root@db1 (sudo by alice)`, which is what the environment says.
pub(super) fn name() -> String {
    let uid = getuid().as_raw();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = user_of(&users, uid).unwrap_or_else(|| format!("uid {uid}"));
    let host = uname().nodename().to_string_lossy().into_owned();
    let sudo = std::env::var("SUDO_USER").map_or(String::new(), |by| format!(" (sudo by {by})"));
    format!("{user}@{host}{sudo}")
}

/// The first name of a user id in /etc/passwd. A user of a directory service has none there.
fn user_of(users: &str, uid: u32) -> Option<String> {
    let uid = uid.to_string();
    let mut users = users.lines().map(|line| line.split(':'));
    users.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_number() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:1000::/:\nal:x:1000:1::/:\n";
        assert_eq!(user_of(users, 0).as_deref(), Some("root"));
        assert_eq!(user_of(users, 1000).as_deref(), Some("alice"));
        assert_eq!(user_of(users, 1), None);
        assert!(name().contains('@'));
    }
}
