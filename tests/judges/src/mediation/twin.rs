//! Compares PostgreSQL's replies to a session through the proxy with those to one without it.

use pgpalisade_test_servers::wire::{Message, pretty};

const SHOWN: usize = 3;

/// First difference between the direct replies and those through the proxy.
pub fn difference(direct: &[Message], proxied: &[Message]) -> Option<String> {
    let own_word = proxied.iter().position(is_own_word);
    let refused_data = out_of_step(proxied).filter(|_| refused_the_data(direct, proxied));
    let until = |messages: &[Message]| {
        let ends = [own_word, refused_data, out_of_step(messages)];
        let end = ends.into_iter().flatten().min();
        end.map_or(messages.len(), |end| end.min(messages.len()))
    };
    // Notifications arrive at any time.
    let settled = |messages: &[Message]| {
        let (at_any_time, in_turn): (Vec<_>, Vec<_>) = messages
            .iter()
            .cloned()
            .partition(|message| message.tag == b'A');
        [in_turn, at_any_time].concat()
    };
    let (direct, proxied) = (
        settled(&direct[..until(direct)]),
        settled(&proxied[..until(proxied)]),
    );
    let (expect, found): (Vec<_>, Vec<_>) = (
        direct.iter().map(comparable).collect(),
        proxied.iter().map(comparable).collect(),
    );
    let at = (0..expect.len().max(found.len())).find(|&at| expect.get(at) != found.get(at))?;
    let from = |messages: &[Message]| {
        pretty(
            &messages[at.saturating_sub(SHOWN).min(messages.len())..(at + 1).min(messages.len())],
        )
    };
    Some(format!(
        "directly:\n{}  through the proxy:\n{}  ",
        from(&direct),
        from(&proxied)
    ))
}

/// Errors that only the proxy sends, even to a holder: a text that cannot be read names the proxy's settings, or a
/// named statement may change the session. After one the conversations differ.
pub fn is_own_word(message: &Message) -> bool {
    let by_name = || {
        let text = message.field(b'M').unwrap_or_default();
        text.contains("cannot run by name")
    };
    message.tag == b'E'
        && match message.sqlstate().as_str() {
            "PF003" => true,
            "PF005" => by_name(),
            _ => false,
        }
}

/// Position of a message that a COPY does not accept. PostgreSQL reports it and ends the session; the proxy does both
/// at once.
fn out_of_step(messages: &[Message]) -> Option<usize> {
    messages.iter().position(|message| {
        let text = message.field(b'M').unwrap_or_default();
        message.tag == b'E' && text.contains("during COPY from stdin")
    })
}

/// Whether the session through the proxy ended with such a message, while PostgreSQL had refused the data before it.
/// The message then counts as the next request there. Only a Sync may have been sent before.
pub fn refused_the_data(direct: &[Message], proxied: &[Message]) -> bool {
    let Some(end) = out_of_step(proxied) else {
        return false;
    };
    let is_refusal = |at: usize| {
        direct.get(at).is_some_and(|message| message.tag == b'E') && out_of_step(direct) != Some(at)
    };
    let text = proxied[end].field(b'M').unwrap_or_default();
    is_refusal(end) || (text.contains("0x53") && end.checked_sub(1).is_some_and(is_refusal))
}

/// A RowDescription without the tables' object ids.
fn without_tables(body: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut rest = body.get(2..).unwrap_or_default();
    while let Some(end) = rest.iter().position(|&byte| byte == 0) {
        let (name, field) = rest.split_at(end);
        kept.extend_from_slice(name);
        // Table and column, then the type.
        kept.extend_from_slice(field.get(7..19).unwrap_or_default());
        rest = field.get(19..).unwrap_or_default();
    }
    kept
}

/// A message without pids, times, object and transaction ids.
pub fn comparable(message: &Message) -> (u8, String) {
    let body = match message.tag {
        b'D' => message.row().join("|"),
        b'A' => message
            .body
            .get(4..)
            .unwrap_or_default()
            .escape_ascii()
            .to_string(),
        b'T' => without_tables(&message.body).escape_ascii().to_string(),
        _ => message.body.escape_ascii().to_string(),
    };
    let body = match message.tag {
        b'D' | b'd'
            if ["cost=", "time=", " ms"]
                .iter()
                .any(|word| body.contains(word)) =>
        {
            String::new()
        }
        b'D' | b'd' | b'E' | b'N' => without_long_numbers(&body),
        _ => body,
    };
    (message.tag, body)
}

fn without_long_numbers(text: &str) -> String {
    let mut kept = String::new();
    let mut digits = String::new();
    for letter in text.chars().chain([' ']) {
        if letter.is_ascii_digit() {
            digits.push(letter);
            continue;
        }
        kept.push_str(if digits.len() > 3 { "#" } else { &digits });
        digits.clear();
        kept.push(letter);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, text: &str) -> Message {
        let body = match tag {
            b'E' => format!("SERROR\0M{text}\0\0"),
            _ => text.to_owned(),
        };
        Message {
            tag,
            body: body.into_bytes(),
        }
    }

    /// A pipeline of COPY, a wrong row, another COPY and a Parse: the proxy ends the session at the second COPY,
    /// PostgreSQL at the Parse.
    #[test]
    fn a_row_refused_before_a_message_that_a_copy_does_not_accept() {
        let wrong_row = message(b'E', "extra data after last expected column");
        let out_of_step = |tag: &str| {
            message(
                b'E',
                &format!("unexpected message type {tag} during COPY from stdin"),
            )
        };
        let (copies, ready) = (message(b'G', ""), message(b'Z', "I"));
        let direct = [
            copies.clone(),
            wrong_row.clone(),
            ready,
            copies.clone(),
            out_of_step("0x50"),
        ];
        let proxied = [copies.clone(), out_of_step("0x51")];
        assert_eq!(difference(&direct, &proxied), None);
        assert!(difference(&direct, &[copies.clone(), message(b'E', "another error")]).is_some());
        assert!(difference(&direct[..2], std::slice::from_ref(&wrong_row)).is_some());
        let synced = [copies.clone(), wrong_row.clone(), out_of_step("0x53")];
        assert_eq!(difference(&direct[..3], &synced), None);
        let synced = [copies, wrong_row, out_of_step("0x51")];
        assert!(difference(&direct[..3], &synced).is_some());
    }
}
