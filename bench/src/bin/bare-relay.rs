//! The floor of the comparison: copies bytes between clients and a server without reading them.
//!
//! One thread, tokio's plain copy. `bare-relay LISTEN SERVER`, both `ADDRESS:PORT`.

use std::io;

use tokio::net::{TcpListener, TcpStream};

const BUFFER: usize = 16 * 1024;

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, server] = arguments.as_slice() else {
        return Err(io::Error::other("give two addresses: LISTEN SERVER"));
    };
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (client, _) = listener.accept().await?;
        let server = server.clone();
        tokio::spawn(async move {
            if let Err(error) = carry(client, &server).await {
                eprintln!("bare-relay: {error}");
            }
        });
    }
}

async fn carry(mut client: TcpStream, server: &str) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER).await?;
    Ok(())
}
