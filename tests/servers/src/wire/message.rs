//! Backend messages, and their form in a failed comparison.

#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Type byte. 0 is the end of the connection.
    pub tag: u8,
    pub body: Vec<u8>,
}

impl Message {
    pub fn closed() -> Self {
        Self {
            tag: 0,
            body: Vec::new(),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.tag == 0
    }

    /// Field of an ErrorResponse or NoticeResponse: `C` is the SQLSTATE, `M` the message, `D` the detail, `H` the
    /// hint.
    pub fn field(&self, code: u8) -> Option<String> {
        self.body
            .split(|byte| *byte == 0)
            .find_map(|field| match field.split_first() {
                Some((first, value)) if *first == code => Some(lossy(value)),
                _ => None,
            })
    }

    pub fn sqlstate(&self) -> String {
        self.field(b'C').unwrap_or_default()
    }

    /// Not translated.
    pub fn severity(&self) -> String {
        self.field(b'V').unwrap_or_default()
    }

    /// As text; NULL is `NULL`.
    pub fn row(&self) -> Vec<String> {
        let mut values = Vec::new();
        let mut rest = self.body.get(2..).unwrap_or_default();
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            match usize::try_from(i32::from_be_bytes(*length)) {
                Err(_) => {
                    values.push("NULL".to_owned());
                    rest = after;
                }
                Ok(length) => {
                    // A pooler whose server is gone may put its own error into the middle of a row.
                    let Some((value, others)) = after.split_at_checked(length) else {
                        break;
                    };
                    values.push(lossy(value));
                    rest = others;
                }
            }
        }
        values
    }

    fn describe(&self) -> String {
        let words = match self.tag {
            0 => return "closed".to_owned(),
            b'E' | b'N' => {
                let fields: Vec<String> = [b'V', b'C', b'M', b'D', b'H']
                    .iter()
                    .filter_map(|f| self.field(*f))
                    .collect();
                fields.join(" | ")
            }
            b'D' => format!(
                "{:?}",
                self.row()
                    .iter()
                    .map(|value| shortened(value))
                    .collect::<Vec<_>>()
            ),
            b'C' | b'Z' => lossy(&self.body).trim_end_matches('\0').to_owned(),
            b'S' => lossy(&self.body).replace('\0', "="),
            b'K' | b'R' => format!("{} bytes", self.body.len()),
            _ => shortened(&format!("{:?}", lossy(&self.body))),
        };
        format!("{} {words}", char::from(self.tag))
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

/// One line for each message.
pub fn pretty(messages: &[Message]) -> String {
    messages
        .iter()
        .map(|message| format!("    {}\n", message.describe()))
        .collect()
}

/// SQLSTATEs of the errors among these messages.
pub fn errors(messages: &[Message]) -> Vec<String> {
    let errors = messages.iter().filter(|message| message.tag == b'E');
    errors.map(Message::sqlstate).collect()
}

/// Asserts that these messages have one error, with this SQLSTATE.
#[track_caller]
pub fn assert_error(messages: &[Message], sqlstate: &str) {
    assert_eq!(errors(messages), [sqlstate], "{}", pretty(messages));
}

/// A text of PostgreSQL as its version 18 has it: older ones speak protocol 3.0 only.
pub fn as_of_18(text: &str) -> String {
    text.replace("supports 3.0 to 3.0", "supports 3.0 to 3.2")
}

/// Type bytes, each `Z` with its transaction status: `1 2 E ZI`.
pub fn tags(messages: &[Message]) -> String {
    let words: Vec<String> = messages
        .iter()
        .map(|message| match message.tag {
            0 => "closed".to_owned(),
            b'Z' => format!("Z{}", lossy(&message.body)),
            tag => char::from(tag).to_string(),
        })
        .collect();
    words.join(" ")
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn shortened(value: &str) -> String {
    let start: String = value.chars().take(80).collect();
    if start.len() == value.len() {
        start
    } else {
        format!("{start}... ({} bytes)", value.len())
    }
}
