//! Messages in words.

use super::{Batch, Message, Wire};

impl Batch {
    /// Messages divided by ` + `, such as `parse s SELECT 1 + run s + sync`. `.` is the empty name, `> SELECT 1` a
    /// [`Self::statement`], and what begins with none of the words a Query. Also returns how many ReadyForQuery follow.
    pub fn told(text: &str) -> (Self, usize) {
        text.split(" + ")
            .fold((Self::new(), 0), |(batch, ends), message| {
                let (word, rest) = message.split_once(' ').unwrap_or((message, ""));
                let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
                let name = first.trim_start_matches('.');
                let batch = match word {
                    ">" => batch.statement(rest),
                    "parse" => batch.parse(name, more),
                    "bind" => {
                        let (statement, more) = more.split_once(' ').unwrap_or((more, ""));
                        batch.bind(name, statement.trim_start_matches('.'), &values(more))
                    }
                    "execute" => batch.execute(name, more.parse().unwrap_or_default()),
                    "run" => batch.bind("", name, &values(more)).execute("", 0),
                    "show" => {
                        let bound = batch.bind("", name, &values(more));
                        bound.describe_portal("").execute("", 0)
                    }
                    "describe" => batch.describe_statement(name),
                    "close" => batch.close_statement(name),
                    "close-portal" => batch.close_portal(name),
                    "flush" => batch.message(b'H', rest.as_bytes()),
                    "data" => {
                        let data = rest.replace("\\n", "\n").replace("\\t", "\t");
                        batch.copy_data(data.as_bytes())
                    }
                    "done" => batch.copy_done(),
                    "fail" => batch.copy_fail(rest),
                    "sync" => return (batch.sync(), ends + 1),
                    "call" => {
                        let arguments: Vec<&str> = more.split_whitespace().collect();
                        let function = first.parse().expect("the oid of a function");
                        return (batch.function_call(function, &arguments), ends + 1);
                    }
                    "query" => return (batch.query(rest), ends + 1),
                    _ => return (batch.query(message), ends + 1),
                };
                (batch, ends)
            })
    }
}

/// Parameter values, of which NULL is one.
fn values(words: &str) -> Vec<Option<&str>> {
    let words = words.split_whitespace();
    words.map(|word| (word != "NULL").then_some(word)).collect()
}

impl Wire {
    /// Sends messages in words, and reads up to the last ReadyForQuery, or to a message of the kind in front:
    /// `G: COPY t FROM STDIN`.
    #[track_caller]
    pub fn say(&mut self, text: &str) -> Vec<Message> {
        if let Some((tag, text)) = text.split_once(": ")
            && let &[tag] = tag.as_bytes()
        {
            self.send(&Batch::told(text).0);
            return self.until(tag);
        }
        let (batch, ends) = Batch::told(text);
        self.send(&batch);
        (0..ends).flat_map(|_| self.until_ready()).collect()
    }
}
