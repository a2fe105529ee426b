//! Sequences of frontend messages, as bytes.

/// A sequence of frontend messages, sent in one write.
#[derive(Clone, Debug, Default)]
pub struct Batch(Vec<u8>);

impl Batch {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// With its correct length.
    pub fn message(mut self, tag: u8, body: &[u8]) -> Self {
        let length = u32::try_from(body.len() + 4).expect("a message has at most 2 GB");
        self.0.push(tag);
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(body);
        self
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn then(self, other: &Self) -> Self {
        self.raw(&other.0)
    }

    pub fn query(self, sql: &str) -> Self {
        self.message(b'Q', &text(sql))
    }

    /// Leaves the types to the server.
    pub fn parse(self, name: &str, sql: &str) -> Self {
        let body = [text(name), text(sql), vec![0, 0]].concat();
        self.message(b'P', &body)
    }

    /// Parameters and results are text; `None` is NULL.
    pub fn bind(self, portal: &str, statement: &str, values: &[Option<&str>]) -> Self {
        let mut body = [
            text(portal),
            text(statement),
            vec![0, 0],
            count(values.len()),
        ]
        .concat();
        for value in values {
            match value {
                None => body.extend_from_slice(&(-1_i32).to_be_bytes()),
                Some(value) => {
                    body.extend_from_slice(&length(value.len()));
                    body.extend_from_slice(value.as_bytes());
                }
            }
        }
        body.extend_from_slice(&[0, 0]);
        self.message(b'B', &body)
    }

    pub fn describe_statement(self, name: &str) -> Self {
        self.message(b'D', &[vec![b'S'], text(name)].concat())
    }

    pub fn describe_portal(self, name: &str) -> Self {
        self.message(b'D', &[vec![b'P'], text(name)].concat())
    }

    /// 0 rows means all.
    pub fn execute(self, portal: &str, rows_max: u32) -> Self {
        self.message(
            b'E',
            &[text(portal), rows_max.to_be_bytes().to_vec()].concat(),
        )
    }

    pub fn close_statement(self, name: &str) -> Self {
        self.message(b'C', &[vec![b'S'], text(name)].concat())
    }

    pub fn close_portal(self, name: &str) -> Self {
        self.message(b'C', &[vec![b'P'], text(name)].concat())
    }

    /// Parse, Bind, Describe and Execute of one unnamed statement, without Sync.
    pub fn statement(self, sql: &str) -> Self {
        self.parse("", sql)
            .bind("", "", &[])
            .describe_portal("")
            .execute("", 0)
    }

    pub fn sync(self) -> Self {
        self.message(b'S', &[])
    }

    pub fn flush(self) -> Self {
        self.message(b'H', &[])
    }

    pub fn copy_data(self, data: &[u8]) -> Self {
        self.message(b'd', data)
    }

    pub fn copy_done(self) -> Self {
        self.message(b'c', &[])
    }

    pub fn copy_fail(self, reason: &str) -> Self {
        self.message(b'f', &text(reason))
    }

    /// Arguments and result are text.
    pub fn function_call(self, function_oid: u32, arguments: &[&str]) -> Self {
        let mut body = [
            function_oid.to_be_bytes().to_vec(),
            vec![0, 0],
            count(arguments.len()),
        ]
        .concat();
        for argument in arguments {
            body.extend_from_slice(&length(argument.len()));
            body.extend_from_slice(argument.as_bytes());
        }
        body.extend_from_slice(&[0, 0]);
        self.message(b'F', &body)
    }

    pub fn password(self, password: &str) -> Self {
        self.message(b'p', &text(password))
    }

    pub fn terminate(self) -> Self {
        self.message(b'X', &[])
    }
}

/// A packet in front of a session: a startup message by its version, or a request by its code.
pub fn packet(code: u32, body: &[u8]) -> Vec<u8> {
    [length(body.len() + 8).as_slice(), &code.to_be_bytes(), body].concat()
}

pub fn startup_packet(version: u32, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in parameters {
        body.extend_from_slice(&text(name));
        body.extend_from_slice(&text(value));
    }
    body.push(0);
    packet(version, &body)
}

/// The key is pid and secret.
pub fn cancel_request(key: &[u8]) -> Vec<u8> {
    packet(80_877_102, key)
}

fn text(value: &str) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

fn count(values: usize) -> Vec<u8> {
    u16::try_from(values)
        .expect("at most 65,535 values")
        .to_be_bytes()
        .to_vec()
}

fn length(bytes: usize) -> Vec<u8> {
    u32::try_from(bytes)
        .expect("below 4 GB")
        .to_be_bytes()
        .to_vec()
}
