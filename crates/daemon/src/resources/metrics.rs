//! What guests use, for whoever comes and asks by HTTP, as Prometheus does: `[metrics] listen` of pando.toml, an
//! address of the host or a socket's path.

use crate::state::daemon::Daemon;
use pando_api::Reply;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

/// The longest question, and how long one may take to ask it and to take the answer.
const LONGEST: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers for as long as the daemon runs, where the settings want it. One asks at a time: a slow one is left after
/// [`PATIENCE`].
pub(crate) async fn serve(daemon: Rc<Daemon>) {
    let mut wanted = daemon.metrics.subscribe();
    loop {
        let listen = wanted.borrow_and_update().listen.clone();
        tokio::select! {
            () = serve_at(&daemon, listen) => {}
            _ = wanted.changed() => {}
        }
    }
}

/// Answers there, for as long as that is wanted.
async fn serve_at(daemon: &Rc<Daemon>, listen: Option<String>) {
    let Some(listen) = listen else { return std::future::pending().await };
    let ended = if listen.starts_with('/') {
        on_path(daemon, Path::new(&listen)).await
    } else {
        on_address(daemon, &listen).await
    };
    if let Err(error) = ended {
        tracing::error!(%error, listen, "nobody can be told there what guests use");
    }
    std::future::pending().await
}

/// How many are answered at once: one that says nothing keeps no other out.
const CLIENTS: usize = 16;

async fn on_path(daemon: &Rc<Daemon>, path: &Path) -> io::Result<()> {
    // An earlier daemon's; one that answers is somebody else's.
    if std::os::unix::net::UnixStream::connect(path).is_err() && is_socket(path) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::from_std(private_listener(path)?)?;
    let clients = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let turn = Arc::clone(&clients).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, _) = listener.accept().await?;
        let daemon = Rc::clone(daemon);
        tokio::task::spawn_local(async move {
            answer(&daemon, stream).await;
            drop(turn);
        });
    }
}

/// Listens at a path that is its owner's alone from its beginning: the directory may be others', who would put
/// something else there before its mode was changed by its path.
fn private_listener(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // bind(2) makes the file with what the socket has.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket.into())
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

async fn on_address(daemon: &Rc<Daemon>, address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let clients = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let turn = Arc::clone(&clients).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, _) = listener.accept().await?;
        let daemon = Rc::clone(daemon);
        tokio::task::spawn_local(async move {
            answer(&daemon, stream).await;
            drop(turn);
        });
    }
}

/// Who cannot be answered has gone.
async fn answer(daemon: &Rc<Daemon>, mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) {
    let talk = async {
        let question = question(&mut stream).await?;
        let (status, body) = match path(&question) {
            Some("/" | "/metrics") => ("200 OK", text(daemon)),
            Some(_) => ("404 Not Found", "there is /metrics and nothing else\n".to_owned()),
            None => ("400 Bad Request", "this is answered: GET /metrics\n".to_owned()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(PATIENCE, talk).await;
}

/// Everything up to the empty line.
async fn question(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut question = Vec::new();
    let mut chunk = [0; 1024];
    while question.len() < LONGEST && !question.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut chunk).await? {
            0 => break,
            length => question.extend_from_slice(&chunk[..length]),
        }
    }
    Ok(question)
}

/// What is asked for, of a question by GET.
fn path(question: &[u8]) -> Option<&str> {
    let line = question.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    (words.next()? == "GET").then(|| words.next().map(|target| target.split('?').next().unwrap_or(target)))?
}

fn text(daemon: &Rc<Daemon>) -> String {
    match super::accounting::stats(daemon, None, false) {
        Ok(Reply::Stats { machine, guests }) => super::exposition::text(&machine, &guests),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_question_by_get_is_one() {
        assert_eq!(path(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"), Some("/metrics"));
        assert_eq!(path(b"POST /metrics HTTP/1.1\r\n\r\n"), None);
        assert_eq!((path(b""), path(b"GET"), path(&[0xff, 0xfe])), (None, None, None));
    }
}
